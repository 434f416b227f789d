// Package chat runs the turns of a chat. It reserves quota when a turn starts. When the turn ends, it settles the quota
// and emits an event.
package chat

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/examples/minichat/events"
)

// Conditions that callers branch on with errors.Is.
var (
	// ErrQuotaExceeded says that the tenant's budget does not cover the tokens.
	ErrQuotaExceeded = errors.New("quota exceeded")
	// ErrRequestRepeated says that the request has already started a turn.
	ErrRequestRepeated = errors.New("request has started a turn already")
	// ErrTurnNotFound says that the tenant does not have the turn.
	ErrTurnNotFound = errors.New("turn not found")
	// ErrTurnNotRunning says that the turn was refused, or that it ended so long ago that its event is gone.
	ErrTurnNotRunning = errors.New("turn is not running")
)

// Service is the chat backend. Any number of goroutines may use it concurrently.
type Service struct {
	pool *pgxpool.Pool
}

// NewService returns the service on the database of pool. The caller closes pool.
func NewService(pool *pgxpool.Pool) *Service { return &Service{pool: pool} }

// StartRequest is a request to start a turn. The client chooses RequestID; one request starts one turn.
type StartRequest struct {
	TenantID, ChatID, RequestID uuid.UUID
	Model                       string
	ReserveTokens               int64 // the most that the turn is expected to use
}

// Start begins a turn, emits its event and returns its id. If the budget does not cover ReserveTokens, the turn is stored as refused
// and the error is ErrQuotaExceeded. A refused turn never ran, so it has no event.
func (s *Service) Start(ctx context.Context, r StartRequest) (events.TurnID, error) {
	v7, err := uuid.NewV7()
	if err != nil {
		return events.TurnID{}, fmt.Errorf("start turn: %w", err)
	}
	id := events.TurnID(v7)
	var refusal error
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		state := "running"
		refusal = reserve(ctx, tx, r.TenantID, r.ReserveTokens)
		switch {
		case errors.Is(refusal, ErrQuotaExceeded):
			state, r.ReserveTokens = "refused", 0
		case refusal != nil:
			return refusal
		}
		if err := insertTurn(ctx, tx, id, state, r); err != nil || refusal != nil {
			return err
		}
		_, err := events.EnqueueTurnStarted(ctx, tx, events.TurnStarted{TenantID: r.TenantID, TurnID: id, ChatID: r.ChatID, Model: r.Model})
		return err
	})
	if err != nil {
		return events.TurnID{}, fmt.Errorf("start turn: %w", err)
	}
	if refusal != nil {
		return id, fmt.Errorf("start turn %s: %w", id, refusal)
	}
	return id, nil
}

// FinalizeRequest says how a turn ended.
type FinalizeRequest struct {
	TenantID uuid.UUID
	TurnID   events.TurnID
	Outcome  events.Outcome
	Usage    events.Usage
	Note     string // "" means none
	Tags     []string
}

// Finalized is the result of a FinalizeRequest.
type Finalized struct {
	// EventID is the event of the turn: the new one, or the existing one if Duplicate is set.
	EventID uuid.UUID
	// Duplicate says that the turn was finalised before, and that this call has changed nothing.
	Duplicate bool
}

// Finalize ends a turn. Its state, the settlement of its quota and its event commit together or not at all. Several
// parties may try, such as the end of the model's answer and a client that hangs up: the first one wins, and the others
// get Duplicate.
func (s *Service) Finalize(ctx context.Context, r FinalizeRequest) (Finalized, error) {
	f, err := finalize(ctx, s.pool, r)
	if err != nil {
		return Finalized{}, fmt.Errorf("finalise turn %s: %w", r.TurnID, err)
	}
	return f, nil
}
