package admin

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/internal/call/errtext"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
)

// ConsumerStatus says what a consumer group keeps in this database because it could not apply it.
type ConsumerStatus struct {
	// Consumer is the name of the group.
	Consumer string `json:"consumer"`
	// Parked counts the messages that are tried again, or that wait behind one of their key. Dead counts the dead letters.
	Parked Count `json:"parked"`
	Dead   Count `json:"dead"`
	// Oldest is how long the oldest parked message has been kept; 0 if there is none. Attempts is how often it has failed,
	// and Error its latest error.
	Oldest   time.Duration `json:"-"`
	Attempts int           `json:"attempts,omitempty"`
	Error    string        `json:"error,omitempty"`
	// Overdue is how long a parked message has been due without being tried. If it is minutes, no process of the group
	// runs, or something that the group needs is unavailable.
	Overdue time.Duration `json:"-"`
	// FirstDiedAt and LastDiedAt are when the oldest and the latest dead letter were given up; zero if there are none.
	// DeadError is the error of the latest.
	FirstDiedAt time.Time `json:"first_died_at,omitzero"`
	LastDiedAt  time.Time `json:"last_died_at,omitzero"`
	DeadError   string    `json:"dead_error,omitempty"`
}

// Consumers returns the consumer groups that keep messages in this database, by name. A group that has applied all it
// got is not among them.
func (a *Admin) Consumers(ctx context.Context) ([]ConsumerStatus, error) {
	list, err := readConsumers(ctx, a.db.Each(a.pool))
	return list, a.db.Wrap("list consumer groups", err)
}

func readConsumers(ctx context.Context, q *queries.Queries) ([]ConsumerStatus, error) {
	rows, err := q.InboxMessageStatus(ctx, CountLimit+1)
	if err != nil {
		return nil, err
	}
	var list []ConsumerStatus
	for _, r := range rows {
		list = append(list, ConsumerStatus{
			Consumer: r.ConsumerGroup, Parked: countOf(r.Parked, false), Dead: countOf(r.Dead, false),
			Oldest: microseconds(r.ParkedUs), Attempts: int(r.Attempts), Error: r.ParkedError,
			Overdue: microseconds(r.OverdueUs), FirstDiedAt: r.FirstDiedAt.Time.UTC(), LastDiedAt: r.LastDiedAt.Time.UTC(),
			DeadError: r.DeadError,
		})
	}
	return list, nil
}

// checkConsumers: consumers apply what they have parked, and nobody has forgotten their dead letters.
func checkConsumers(ctx context.Context, e *examination) (found []Finding, err error) {
	var list []ConsumerStatus
	err = e.read(ctx, func(ctx context.Context, _ pgx.Tx, q *queries.Queries) (err error) {
		if err = q.SessionGuard(ctx); err == nil {
			list, err = readConsumers(ctx, q)
		}
		return err
	})
	for _, c := range list {
		switch {
		case c.Overdue >= longDue:
			found = append(found, Finding{
				Severity: SeverityWarning,
				Text: fmt.Sprintf("consumer group %s has parked %s, and one is due since %s", c.Consumer, messages(c.Parked),
					age(c.Overdue)),
				Means: "no process of the consumer runs, or what it needs is unavailable; " +
					"later messages of the same keys wait too",
				Fix: "start a process of the consumer, or read its log",
			})
		case c.Oldest >= longDue:
			found = append(found, Finding{
				Severity: SeverityWarning,
				Text: fmt.Sprintf("consumer group %s has parked %s, the oldest %s ago, with failed attempts: %d (%s)",
					c.Consumer, messages(c.Parked), age(c.Oldest), c.Attempts, errtext.Short(c.Error)),
				Means: "later messages of the same keys wait until they are applied or are out of attempts",
				Fix:   "fix the cause: the consumer tries them again by itself",
			})
		}
		if c.Dead.N > 0 {
			found = append(found, Finding{
				Severity: SeverityNotice,
				Text: fmt.Sprintf("consumer group %s has given %s up, the latest at %s (%s)", c.Consumer, messages(c.Dead),
					c.LastDiedAt.UTC().Format(time.RFC3339), errtext.Short(c.DeadError)),
				Means: "their effects are missing, and they are deleted after the QuarantineRetention of the inbox",
				Fix:   e.command("dead groups --consumer "+c.Consumer) + "; then fix the cause and replay them, or discard them",
			})
		}
	}
	return found, err
}

func messages(c Count) string {
	if c.N == 1 {
		return "1 message"
	}
	return c.String() + " messages"
}
