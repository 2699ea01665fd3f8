"""Regular expressions of subscriptions, in time linear in the topic name."""
