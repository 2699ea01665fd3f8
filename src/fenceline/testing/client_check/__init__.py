"""Report cards of clients: a consumer or producer program, run through every situation of the laboratory.

| Module | Owns |
|---|---|
| `program` | the process of the program: what it gets, what it printed and when, its end |
| `verdicts` | what a program did in a case, from what it printed and what the log has |
| `consumer_cases`, `producer_cases` | the cases |
| `explanations` | what each case does, for users |
| `stage` | one case from start to end |
| `cards` | the card as text, as Markdown and as JSON |
"""
