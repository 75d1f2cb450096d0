"""The queue side: what becomes work, who may run it, and how a turn begins and ends.

Overview::

    send, exit, decision ─▶ mailbox row + work item (one transaction) ─▶ DBOS queue ─▶ turn
    turn: enter (claim, epoch) ─▶ begin (recorded) ─▶ agent run ─▶ closing transaction

States of a conversation::

    free ──enter──▶ claimed ──closing──▶ free | blocked(approval | wake_limit | set_aside)
      ▲                                          │
      └───────── enter by an admitted item ◀─────┘

Invariants, cited by tests:

1. A mailbox row commits together with the item whose turn will read it.
2. Put, enter and release lock the conversation's row first.
3. Only the execution that raised the epoch last may take rows, claim sessions, begin calls or close.
4. A turn is closed once; a repeat returns the stored outcome.
5. Releasing a conversation with unread rows enqueues exactly one follow-up, unless it blocks.
6. A turn reads changeable state only in recorded steps.
"""
