package outboxtest_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	chat "github.com/outboxgen/outboxgen/generator/testdata/minichat/want" // in your code: your events
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/outboxfake"
)

// Turns is the code under test.
type Turns struct {
	DB interface {
		Begin(ctx context.Context) (pgx.Tx, error)
	} // a *pgxpool.Pool
	Events chat.MiniChatEnqueuer // chat.MiniChatOutbox{}
	Quota  int64
}

func (t Turns) Finish(ctx context.Context, turn chat.TurnFinalized) error {
	return pgx.BeginFunc(ctx, t.DB, func(tx pgx.Tx) error {
		if _, err := t.Events.EnqueueTurnFinalized(ctx, tx, turn); err != nil {
			return err
		}
		if turn.Usage.OutputTokens > t.Quota {
			return errors.New("finish turn: quota exceeded") // rolls back
		}
		return nil
	})
}

// The test needs no database: the fake is the database and the enqueuer.
func Example_fake() {
	ctx := context.Background() // in your code: t.Context()
	fake := chat.NewFakeMiniChat()
	turns := Turns{DB: fake, Events: fake, Quota: 100}
	turn := chat.TurnFinalized{
		TenantID: uuid.New(), TurnID: uuid.New(), RequestID: uuid.New(), ChatID: uuid.New(),
		Outcome: chat.OutcomeCompleted, Usage: chat.Usage{OutputTokens: 17}, FinalizedAt: time.Now(),
	}
	fmt.Println(turns.Finish(ctx, turn), len(fake.TurnFinalized()))
	fmt.Println(turns.Finish(ctx, turn), len(fake.TurnFinalized())) // a duplicate

	turn.RequestID, turn.Usage.OutputTokens = uuid.New(), 1000
	fmt.Println(turns.Finish(ctx, turn), len(fake.TurnFinalized())) // rolled back

	turn.TenantID = uuid.Nil
	fmt.Println(errors.Is(turns.Finish(ctx, turn), outbox.ErrEmptyKeyPart)) // the rules are those of the real enqueue

	first := outboxfake.Events(fake.DB, chat.TurnFinalizedTopic)[0]
	fmt.Println(first.Payload.Usage.OutputTokens, first.Entity.Type)
	// Output:
	// <nil> 1
	// <nil> 1
	// finish turn: quota exceeded 1
	// true
	// 17 turn
}
