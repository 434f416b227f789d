package deliveryhistory

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Row is the state of an event in the table.
type Row struct {
	ID          uuid.UUID
	Status      string // "" if the event has no state
	Attempts    int
	MaxAttempts int // 0 if it is not known: the row of a delivered event does not have it
	LastError   string
}

// Querier is a pool, a connection or a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Rows reads every event of a schema.
func Rows(ctx context.Context, db Querier, schema string) (map[uuid.UUID]Row, error) {
	rows, err := db.Query(ctx,
		"SELECT id, coalesce(status, ''), coalesce(attempts, 0), coalesce(max_attempts, 0), coalesce(last_error, '') FROM "+
			pgx.Identifier{schema, "event_status"}.Sanitize())
	if err != nil {
		return nil, fmt.Errorf("read events: %w", err)
	}
	all := make(map[uuid.UUID]Row)
	var r Row
	if _, err := pgx.ForEachRow(rows, []any{&r.ID, &r.Status, &r.Attempts, &r.MaxAttempts, &r.LastError}, func() error {
		all[r.ID] = r
		return nil
	}); err != nil {
		return nil, fmt.Errorf("read events: %w", err)
	}
	return all, nil
}

// Conditions say what happened in a run, and so which invariants its history must satisfy.
type Conditions struct {
	// Faults: faults were injected, so an event may be delivered more than once.
	Faults bool
	// AsyncCommit: producers did not wait for the disk and the server crashed, so a committed event may be lost. No
	// handler may have seen such an event.
	AsyncCommit bool
	// MaxAttempts is the limit of events whose row does not have it; 0 means any.
	MaxAttempts int
	// Unfinished: the run was not drained, so events may be pending.
	Unfinished bool
}

// Violation is one broken invariant.
type Violation struct {
	Invariant string // I1 to I11
	Event     uuid.UUID
	Text      string
}

// String returns the violation as "I2 event 01...: aborted, but delivered 1 times".
func (v Violation) String() string {
	return fmt.Sprintf("%s event %s: %s", v.Invariant, v.Event, v.Text)
}

// Check compares the history with the rows at the end of a run and returns the violations in a stable order. It checks
// I1, I2, I3, I6, I9, and the part of I11 that says that nothing is processing and everything has a state.
func (h *History) Check(rows map[uuid.UUID]Row, c Conditions) []Violation {
	var found []Violation
	report := func(invariant string, id uuid.UUID, format string, args ...any) {
		found = append(found, Violation{invariant, id, fmt.Sprintf(format, args...)})
	}
	for id, outcome := range h.Outcomes {
		row, there := rows[id]
		seen := h.Deliveries[id]
		switch {
		case outcome == Aborted && (there || seen > 0):
			report("I2", id, "aborted, but delivered %d times, row %q", seen, row.Status)
		case !there && seen > 0:
			report("I3", id, "%s and delivered %d times, but has no row", outcome, seen)
		case outcome == Committed && !there && !c.AsyncCommit:
			report("I1", id, "committed, but has no row")
		}
	}
	for id, seen := range h.Deliveries {
		if _, known := h.Outcomes[id]; !known {
			report("I2", id, "delivered %d times, but nobody enqueued it", seen)
		}
	}
	for id, row := range rows {
		seen := h.Deliveries[id]
		row.MaxAttempts = cmp.Or(row.MaxAttempts, c.MaxAttempts)
		if invariant, text := row.fault(seen, c); text != "" {
			report(invariant, id, "%s", text)
		}
		if seen > row.Attempts || row.MaxAttempts > 0 && row.Attempts > row.MaxAttempts {
			report("I6", id, "seen %d, attempts %d, max %d", seen, row.Attempts, row.MaxAttempts)
		}
		if !c.Faults && (seen > 1 || row.Attempts > 1) {
			report("I9", id, "seen %d, attempts %d, without any fault", seen, row.Attempts)
		}
	}
	slices.SortFunc(found, func(a, b Violation) int { return strings.Compare(a.String(), b.String()) })
	return found
}

// fault says what is wrong with the state of an event that handlers have seen so often; the text is "" if nothing is.
func (r Row) fault(seen int, c Conditions) (invariant, text string) {
	switch {
	case r.Status == "":
		return "I11", "has no state"
	case r.Status == "processing":
		return "I11", "processing at the end"
	case r.Status == "pending" && !c.Unfinished:
		return "I1", "pending at the end"
	case r.Status == "delivered" && seen == 0:
		return "I1", "delivered by its row, but no handler saw it"
	case r.Status == "dead" && r.LastError == "":
		return "I1", "dead without a reason"
	}
	return "", ""
}

// CheckFinal checks I5: an event that was delivered or dead before is so afterwards.
func CheckFinal(before, after map[uuid.UUID]Row) []Violation {
	var found []Violation
	for id, was := range before {
		if was.Status != "delivered" && was.Status != "dead" {
			continue
		}
		if is := after[id]; is.Status != was.Status || is.Attempts != was.Attempts {
			found = append(found, Violation{
				"I5", id,
				fmt.Sprintf("was %s after %d attempts, is %q after %d", was.Status, was.Attempts, is.Status, is.Attempts),
			})
		}
	}
	slices.SortFunc(found, func(a, b Violation) int { return strings.Compare(a.String(), b.String()) })
	return found
}
