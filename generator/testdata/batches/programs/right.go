package program

import (
	"context"

	"github.com/jackc/pgx/v5"

	"example.com/events"

	"github.com/outboxgen/outboxgen/outbox"
)

// The program that the others are not: it compiles.
type mail struct {
	events.UnimplementedMailHandlers
}

func (mail) HandleDigestDueBatch(_ context.Context, ds []outbox.Delivery[events.DigestDue]) error {
	var failed outbox.BatchError
	for _, d := range ds {
		if d.Payload.MailboxID.Version() == 0 {
			failed.Fail(d.Event, outbox.Permanent(context.Canceled))
		}
	}
	return failed.Err()
}

type keeper struct{}

func (keeper) HandleNoteAddedBatch(context.Context, pgx.Tx, []outbox.Delivery[events.NoteAdded]) error {
	return nil
}

var (
	_ events.MailHandlers   = mail{}
	_ events.KeeperHandlers = keeper{}
)
