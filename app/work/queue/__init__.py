"""Work items, queues, the mailbox and the event stream of a conversation."""
