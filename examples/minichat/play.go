package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/examples/minichat/chat"
	"github.com/outboxgen/outboxgen/examples/minichat/events"
	"github.com/outboxgen/outboxgen/examples/minichat/ledger"
)

// patience is how long a delivery may take.
const patience = 30 * time.Second

// play is a chat of a tenant with a small budget.
func play(ctx context.Context, service *chat.Service, books *ledger.Ledger, told <-chan events.TurnFinalized, out io.Writer) error {
	tenant, conversation := uuid.New(), uuid.New()
	if err := service.SetBudget(ctx, tenant, 1000); err != nil {
		return err
	}
	start := func(tokens int64) (events.TurnID, error) {
		return service.Start(ctx, chat.StartRequest{
			TenantID: tenant, ChatID: conversation, RequestID: uuid.New(), Model: "small-1", ReserveTokens: tokens,
		})
	}
	for _, turn := range []struct {
		outcome events.Outcome
		usage   events.Usage
	}{
		{events.OutcomeCompleted, events.Usage{InputTokens: 120, OutputTokens: 180}},
		{events.OutcomeFailed, events.Usage{InputTokens: 80}},
		{events.OutcomeAborted, events.Usage{InputTokens: 60, OutputTokens: 40}},
	} {
		id, err := start(300)
		if err != nil {
			return err
		}
		end := chat.FinalizeRequest{TenantID: tenant, TurnID: id, Outcome: turn.outcome, Usage: turn.usage}
		first, err := service.Finalize(ctx, end)
		if err != nil {
			return err
		}
		second, err := service.Finalize(ctx, end)
		if err != nil {
			return err
		}
		if err := say(out, "turn %-9s  event %s, sent again: duplicate %t", turn.outcome, first.EventID, second.Duplicate); err != nil {
			return err
		}
		p, err := delivered(ctx, told, id)
		if err != nil {
			return err
		}
		if err := say(out, "     delivered  %d + %d tokens of %s", p.Usage.InputTokens, p.Usage.OutputTokens, p.Model); err != nil {
			return err
		}
	}
	if _, err := start(800); !errors.Is(err, chat.ErrQuotaExceeded) {
		return fmt.Errorf("start a turn over budget: %v, want %w", err, chat.ErrQuotaExceeded)
	}
	if err := say(out, "turn refused    800 tokens are over budget: no event"); err != nil {
		return err
	}

	quota, err := service.Quota(ctx, tenant)
	if err != nil {
		return err
	}
	total, err := books.Total(ctx, tenant)
	if err != nil {
		return err
	}
	if err := say(out, "quota           %d of %d tokens used", quota.Used, quota.Budget); err != nil {
		return err
	}
	return say(out, "ledger          %d turns, %d tokens", total.Turns, total.InputTokens+total.OutputTokens)
}

// delivered waits for the event of a turn.
func delivered(ctx context.Context, told <-chan events.TurnFinalized, turn events.TurnID) (events.TurnFinalized, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("turn %s is not delivered within %s", turn, patience))
	defer cancel()
	for {
		select {
		case p := <-told:
			if p.TurnID == turn {
				return p, nil
			}
		case <-ctx.Done():
			return events.TurnFinalized{}, context.Cause(ctx)
		}
	}
}

func say(out io.Writer, format string, args ...any) error {
	_, err := fmt.Fprintf(out, format+"\n", args...)
	return err
}
