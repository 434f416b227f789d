package admin

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/outboxgen/outboxgen/internal/postgres/pgvalue"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
)

// EventAct is an act of an operator that has touched an event.
type EventAct struct {
	AuditEntry
	// Certain says that the entry names the event. Otherwise its scope fits the event, and the audit does not say more: of
	// a pause, for example, or of a replay of more than 100 dead letters.
	Certain bool `json:"certain"`
}

// actsRead is how many acts, the latest ones, are compared with events.
const actsRead = 5000

// readActs adds to events, which are not none, the acts that have touched them.
func readActs(ctx context.Context, q *queries.Queries, events []*EventLife) error {
	since := events[0].CreatedAt
	for _, e := range events {
		if e.CreatedAt.Before(since) {
			since = e.CreatedAt
		}
	}
	rows, err := q.AuditLatest(ctx, queries.AuditLatestParams{Piece: actsRead, Since: pgvalue.Time(pgvalue.Clamp(since))})
	if err != nil {
		return err
	}
	for _, r := range rows {
		var s auditScope
		if json.Unmarshal(r.Scope, &s) != nil {
			continue // somebody has written it by hand
		}
		entry := AuditEntry{
			No: r.No, At: r.At.Time.UTC(), Who: r.Who, Action: r.Act, Why: r.Why, Scope: scopeText(r.Scope), Filter: r.Scope,
			Events: r.Events,
		}
		for _, e := range events {
			certain := s.names(e)
			if certain || s.fits(e, r.Act, entry.At) {
				e.Acts = append(e.Acts, EventAct{entry, certain})
			}
		}
	}
	return nil
}

// names reports whether s names the event.
func (s *auditScope) names(e *EventLife) bool {
	return s.ID != nil && *s.ID == e.ID || slices.Contains(s.IDs, e.ID) || slices.Contains(s.Selected, e.ID)
}

// fits reports whether an act at a time on s, which does not name e, may have touched it.
func (s *auditScope) fits(e *EventLife, act string, at time.Time) bool {
	over := !e.FinalizedAt.IsZero() && e.FinalizedAt.Before(at) && e.Status != StatusDead
	switch {
	case s.ID != nil, len(s.IDs) > 0 && s.MoreIDs == 0, s.Selected != nil, s.Consumer != "", over, at.Before(e.CreatedAt):
		return false
	case s.Namespace != "" && s.Namespace != e.Namespace, s.Topic != "" && s.Topic != e.Topic,
		s.TenantID != nil && (!e.TenantID.Valid || *s.TenantID != e.TenantID.UUID),
		s.Key != "" && s.Key != e.DedupeKey && s.Key != e.PartitionKey:
		return false
	case s.Listener != "" && !slices.ContainsFunc(e.Listeners, func(l EventAtListener) bool { return l.Listener == s.Listener }):
		return false
	}
	switch act {
	case "replay", "discard":
		after := s.Since != nil && e.CreatedAt.Before(*s.Since)
		before := s.Until != nil && !e.CreatedAt.Before(*s.Until)
		return !after && !before && e.hasFailed(s.Listener)
	case "pause", "resume":
		return true
	case "rewind":
		return s.Listener != "" && (s.To == nil || !e.CreatedAt.Before(*s.To))
	}
	return false
}

// hasFailed reports whether an attempt at the event has failed: at a listener, or for "" anywhere.
func (e *EventLife) hasFailed(listener string) bool {
	if listener == "" && (e.LastError != "" || e.Status == StatusDead) {
		return true
	}
	return slices.ContainsFunc(e.Listeners, func(l EventAtListener) bool {
		return (listener == "" || l.Listener == listener) && (len(l.Failures) > 0 || l.LastError != "")
	})
}
