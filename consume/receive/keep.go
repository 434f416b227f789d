package receive

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/internal/postgres/pgvalue"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
)

func encodingOf(tx pgx.Tx) string { return errclass.EncodingOf(tx.Conn()) }

// knowledge is what the group keeps of a batch.
type knowledge struct {
	kept   map[string]Outcome // Parked or Dead, by message
	parked map[string]bool    // keys
}

// known asks what the group keeps of a batch.
func (r *Receiver) known(ctx context.Context, tx pgx.Tx, batch []*item, encoding string) (knowledge, error) {
	k := knowledge{make(map[string]Outcome), make(map[string]bool)}
	p := queries.InboxMessageKnownParams{ConsumerGroup: r.group, MessageIds: make([]string, len(batch)), Keys: []string{}}
	seen := make(map[string]bool)
	for i, it := range batch {
		p.MessageIds[i] = clean(it.id, encoding)
		if it.key != "" && !seen[it.key] {
			seen[it.key] = true
			p.Keys = append(p.Keys, clean(it.key, encoding))
		}
	}
	rows, err := r.db.On(tx).InboxMessageKnown(ctx, p)
	if err != nil {
		return k, r.db.Wrap("look for kept messages", err)
	}
	for _, row := range rows {
		if row.MessageID == "" {
			k.parked[row.Key] = true
		} else {
			k.kept[row.MessageID] = Outcome(row.Status)
		}
	}
	return k, nil
}

// keeping collects the messages that a transaction keeps.
type keeping struct{ p queries.InboxMessagePutParams }

// add adds a message with a status. delay is when it is due, in microseconds; -1 means that it waits behind another
// one.
func (k *keeping) add(it *item, encoding string, status Outcome, delay int64) error {
	column, err := envelopeOf(it.message.Message)
	if err != nil {
		return err
	}
	why := it.last
	if it.fault != nil {
		why = it.fault
	}
	reason := "it waits behind an earlier message of its key"
	if why != nil {
		reason = errclass.Of(why).Text
	}
	p, e := &k.p, &it.event
	p.Numbers = append(p.Numbers, int32(len(p.Numbers)))
	p.MessageIds = append(p.MessageIds, clean(it.id, encoding))
	p.Places = append(p.Places, clean(it.message.Place, encoding))
	p.Keys = append(p.Keys, clean(it.key, encoding))
	p.EventIds = append(p.EventIds, pgtype.UUID{Bytes: e.ID, Valid: e.ID != uuid.Nil})
	p.Types = append(p.Types, clean(e.Type, encoding))
	p.Namespaces = append(p.Namespaces, clean(e.Namespace, encoding))
	p.Topics = append(p.Topics, clean(e.Topic, encoding))
	p.Versions = append(p.Versions, int32(e.Version))
	p.TenantIds = append(p.TenantIds, pgvalue.NullUUID(e.TenantID))
	p.Envelopes = append(p.Envelopes, column)
	body := it.message.Body
	if body == nil {
		body = []byte{}
	}
	p.Bodies = append(p.Bodies, body)
	p.Statuses = append(p.Statuses, string(status))
	p.Attempts = append(p.Attempts, int32(it.attempts))
	p.DelaysUs = append(p.DelaysUs, delay)
	p.Errors = append(p.Errors, clean(reason, encoding))
	return nil
}

// promote makes the first parked messages of keys due, and has Run look. It reports whether that worked.
func (r *Receiver) promote(ctx context.Context, keys []string) bool {
	err := r.db.Each(r.pool).InboxMessagePromote(ctx, queries.InboxMessagePromoteParams{
		ConsumerGroup: r.group, Keys: keys,
	})
	select {
	case r.wake <- struct{}{}:
	default:
	}
	return err == nil
}

// Status counts what the consumer group keeps.
func (r *Receiver) Status(ctx context.Context) (Status, error) {
	row, err := r.db.Each(r.pool).InboxMessageCount(ctx, queries.InboxMessageCountParams{
		ConsumerGroup: r.group, Most: MaxCount,
	})
	if err != nil {
		return Status{}, r.db.Wrap(fmt.Sprintf("count messages of %s", r.group), err)
	}
	return Status{Parked: int(row.Parked), Dead: int(row.Dead), Oldest: microseconds(row.OldestUs)}, nil
}
