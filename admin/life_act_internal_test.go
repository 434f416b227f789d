package admin

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// TestActsThatFit: an act whose entry names no event may have touched those that its scope fits, and that were there to be
// touched.
func TestActsThatFit(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	hour := func(n int) *time.Time { d := at.Add(time.Duration(n) * time.Hour); return &d }
	tenant, other := uuid.New(), uuid.New()
	event := func(change func(e *EventLife)) *EventLife {
		e := &EventLife{EventStatus: EventStatus{
			ID: uuid.New(), Namespace: "shop", Topic: "paid", DedupeKey: "d", PartitionKey: "p", CreatedAt: at, LastError: "no",
			TenantID: uuid.NullUUID{UUID: tenant, Valid: true},
		}, Listeners: []EventAtListener{{Listener: "ears", LastError: "no"}, {Listener: "eyes"}}}
		if change != nil {
			change(e)
		}
		return e
	}
	for name, c := range map[string]struct {
		scope  auditScope
		act    string
		change func(e *EventLife)
		fits   bool
	}{
		"replay of all":         {auditScope{}, "replay", nil, true},
		"namespace":             {auditScope{Namespace: "shop"}, "replay", nil, true},
		"other namespace":       {auditScope{Namespace: "mail"}, "replay", nil, false},
		"topic":                 {auditScope{Namespace: "shop", Topic: "paid"}, "pause", nil, true},
		"other topic":           {auditScope{Namespace: "shop", Topic: "sent"}, "pause", nil, false},
		"tenant":                {auditScope{TenantID: &tenant}, "resume", nil, true},
		"other tenant":          {auditScope{TenantID: &other}, "resume", nil, false},
		"no tenant":             {auditScope{TenantID: &tenant}, "resume", func(e *EventLife) { e.TenantID = uuid.NullUUID{} }, false},
		"dedupe key":            {auditScope{Key: "d"}, "replay", nil, true},
		"partition key":         {auditScope{Key: "p"}, "replay", nil, true},
		"other key":             {auditScope{Key: "k"}, "replay", nil, false},
		"listener":              {auditScope{Listener: "ears"}, "replay", nil, true},
		"other listener":        {auditScope{Listener: "nose"}, "replay", nil, false},
		"listener at peace":     {auditScope{Listener: "eyes"}, "replay", nil, false},
		"consumer":              {auditScope{Consumer: "cards"}, "replay", nil, false},
		"other ids":             {auditScope{IDs: []uuid.UUID{other}}, "replay", nil, false},
		"more ids":              {auditScope{IDs: []uuid.UUID{other}, MoreIDs: 1}, "replay", nil, true},
		"other selected":        {auditScope{Selected: []uuid.UUID{other}}, "replay", nil, false},
		"of another event":      {auditScope{ID: &other}, "skip", nil, false},
		"since":                 {auditScope{Since: hour(0)}, "discard", nil, true},
		"since later":           {auditScope{Since: hour(1)}, "discard", nil, false},
		"until":                 {auditScope{Until: hour(1)}, "discard", nil, true},
		"until then":            {auditScope{Until: hour(0)}, "discard", nil, false},
		"never failed":          {auditScope{}, "replay", func(e *EventLife) { e.LastError, e.Listeners = "", nil }, false},
		"dead without an error": {auditScope{}, "replay", func(e *EventLife) { e.LastError, e.Listeners, e.Status = "", nil, StatusDead }, true},
		"enqueued afterwards":   {auditScope{}, "replay", func(e *EventLife) { e.CreatedAt = *hour(3) }, false},
		"delivered before":      {auditScope{}, "pause", func(e *EventLife) { e.FinalizedAt, e.Status = *hour(1), StatusDelivered }, false},
		"delivered afterwards":  {auditScope{}, "pause", func(e *EventLife) { e.FinalizedAt, e.Status = *hour(3), StatusDelivered }, true},
		"dead before":           {auditScope{}, "replay", func(e *EventLife) { e.FinalizedAt, e.Status = *hour(1), StatusDead }, true},
		"rewind":                {auditScope{Listener: "ears", To: hour(0)}, "rewind", nil, true},
		"rewind to later":       {auditScope{Listener: "ears", To: hour(1)}, "rewind", nil, false},
		"rewind of nobody":      {auditScope{}, "rewind", nil, false},
		"prune":                 {auditScope{}, "prune", nil, false},
	} {
		require.Equal(t, c.fits, c.scope.fits(event(c.change), c.act, *hour(2)), name)
	}
	e := event(nil)
	for _, s := range []auditScope{{ID: &e.ID}, {IDs: []uuid.UUID{other, e.ID}}, {Selected: []uuid.UUID{e.ID}}} {
		require.True(t, s.names(e))
		require.False(t, s.names(event(nil)))
	}
}
