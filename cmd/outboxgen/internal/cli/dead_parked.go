package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/internal/call/errtext"
)

func (a *app) deadParked(db *database) *cobra.Command {
	var consumer string
	var limit int
	c := &cobra.Command{
		Use:   "parked",
		Short: "List the messages that a consumer tries again",
		Long: `parked shows the messages that a consumer group has parked because they failed, the next to be tried
first. They are not dead letters yet: the consumer tries them LEFT times more, the next time at NEXT. BEHIND counts the
later messages of the same key, which wait. When the cause is fixed they are applied in order, without a command.`,
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
		table := [][]any{{"NEXT", "LEFT", "FAILED", "BEHIND", "TOPIC", "PLACE", "KEY", "ERROR"}}
		for _, m := range list {
			left := "-"
			if m.AttemptsLeft >= 0 {
				left = fmt.Sprint(m.AttemptsLeft)
			}
			table = append(table, []any{
				second(m.NextAttemptAt), left, m.Attempts, m.Behind, m.Topic, dash(brief(m.Place)), dash(brief(m.Key)),
				dash(errtext.Short(m.Error)),
			})
		}
		err = a.printList(struct {
			Parked []admin.ParkedMessage `json:"parked"`
			More   bool                  `json:"more"`
		}{list, more}, table, "no parked messages")
		if more && !a.json {
			a.notef("there are more: raise --limit")
		}
		return err
	})
	c.Flags().StringVar(&consumer, "consumer", "", "the consumer `group`")
	c.Flags().IntVar(&limit, "limit", 50, "show at most `n` messages")
	return c
}
