package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/internal/call/errtext"
)

// parkedRow is a parked message in the --json document.
type parkedRow struct {
	Place         string     `json:"place"`
	ID            *uuid.UUID `json:"id,omitempty"`
	Topic         string     `json:"topic"`
	Key           string     `json:"key,omitempty"`
	TenantID      *uuid.UUID `json:"tenant_id,omitempty"`
	Attempts      int        `json:"attempts"`
	AttemptsLeft  *int       `json:"attempts_left,omitempty"`
	NextAttemptAt time.Time  `json:"next_attempt_at"`
	ReceivedAt    time.Time  `json:"received_at"`
	Behind        int64      `json:"behind"`
	Error         string     `json:"error"`
}

func (a *app) deadParked(db *database) *cobra.Command {
	var consumer string
	var limit int
	c := &cobra.Command{
		Use:   "parked",
		Short: "List the messages that a consumer tries again",
		Long: `parked shows the messages that a consumer group has parked because they failed, the next to be tried first. They are
not dead letters yet: the consumer tries them LEFT times more, the next time at NEXT. BEHIND counts the later messages of
the same key, which wait. When the cause is fixed they are applied in order, without a command.`,
		Example: `  outboxgen dead parked --consumer cards
  outboxgen dead parked --consumer cards --limit 5 --json`,
		Args: cobra.NoArgs,
	}
	c.PreRunE = func(*cobra.Command, []string) error {
		switch {
		case consumer == "":
			return errors.New("--consumer is missing: name the consumer group; outboxgen status shows those that keep messages")
		case limit < 1 || limit > maxListed:
			return fmt.Errorf("--limit: %d is not between 1 and %d", limit, maxListed)
		}
		return nil
	}
	c.RunE = a.administer(db, func(ctx context.Context, ops *admin.Admin, _ []string) error {
		list, err := ops.Parked(ctx, consumer, limit+1)
		if err == nil && len(list) == 0 {
			err = checkConsumer(ctx, ops, consumer)
		}
		if err != nil {
			return err
		}
		more := len(list) > limit
		list = list[:min(len(list), limit)]
		rows := make([]parkedRow, len(list))
		table := [][]any{{"NEXT", "LEFT", "FAILED", "BEHIND", "TOPIC", "PLACE", "KEY", "ERROR"}}
		for i, m := range list {
			rows[i] = parkedRow{
				Place: m.Place, Topic: m.Topic, Key: m.Key, Attempts: m.Attempts, NextAttemptAt: m.NextAttemptAt.UTC(), ReceivedAt: m.ReceivedAt.UTC(),
				Behind: m.Behind.N, Error: m.Error,
			}
			if m.EventID != uuid.Nil {
				rows[i].ID = &list[i].EventID
			}
			if m.TenantID.Valid {
				rows[i].TenantID = &list[i].TenantID.UUID
			}
			left := "-"
			if m.AttemptsLeft >= 0 {
				rows[i].AttemptsLeft, left = &list[i].AttemptsLeft, fmt.Sprint(m.AttemptsLeft)
			}
			table = append(table, []any{second(m.NextAttemptAt), left, m.Attempts, m.Behind, m.Topic, dash(brief(m.Place)), dash(brief(m.Key)), dash(errtext.Short(m.Error))})
		}
		switch {
		case a.json:
			return a.printJSON(struct {
				Parked []parkedRow `json:"parked"`
				More   bool        `json:"more"`
			}{rows, more})
		case len(rows) == 0:
			a.notef("no parked messages")
			return nil
		}
		if err := a.printTable(table); err != nil {
			return err
		}
		if more {
			a.notef("there are more: raise --limit")
		}
		return nil
	})
	c.Flags().StringVar(&consumer, "consumer", "", "the consumer `group`")
	c.Flags().IntVar(&limit, "limit", 50, "show at most `n` messages")
	return c
}
