"""The laboratory: clusters of real processes whose disks, clocks, networks and answers fail on request.

| Module | Owns |
|---|---|
| `cluster` | a cluster for tests: its nodes, its faults, its situations, its timeline, its losses |
| `faults` | what a test can break, and how it is undone |
| `situations` | what an application must survive, each as one function |
| `fault_state`, `control` | how a fault reaches the process of a node |
| `nodes` | what runs in the process of a node |
| `forking` | processes that start in milliseconds |
"""
