package scalars_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	events "github.com/outboxgen/outboxgen/generator/testdata/scalars/want"
	"github.com/outboxgen/outboxgen/generator/testdata/scalars/want/turnevents"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/outboxtest"
)

const (
	tenantText = "01890a5d-ac96-774b-bcce-b302099a8057"
	turnText   = "0192d4a0-6c7e-7b1a-9a53-0c3f5a9b2e11"
)

func ended() events.Ended {
	turn := events.TurnID(uuid.MustParse(turnText))
	return events.Ended{
		Tenant: events.TenantID(uuid.MustParse(tenantText)), TurnID: turn, Slug: "a/b", Label: "l", Revision: 7, Rank: -1,
		Outcome: events.OutcomeNotApplicable, Previous: &turn, Turns: []events.TurnID{turn},
		ByName: map[string]events.TurnID{"x": turn}, Slugs: [][]events.Slug{{"ab"}}, Revisions: map[string]events.Revision{"x": 1},
		Step: events.Step{TurnID: turn, At: time.Unix(1, 0).UTC(), Tags: []events.Label{"t"}}, StartedAt: time.Unix(2, 0).UTC(),
	}
}

// TestRoundTrip: a scalar has the JSON of its underlying type, in both packages.
func TestRoundTrip(t *testing.T) {
	t.Parallel()
	p := ended()
	require.NoError(t, p.Validate())
	body, err := json.Marshal(p)
	require.NoError(t, err)
	require.JSONEq(t, `{"tenant":"`+tenantText+`","turn_id":"`+turnText+`","slug":"a/b","label":"l","revision":7,"rank":-1,"outcome":"N/A",
		"previous":"`+turnText+`","turns":["`+turnText+`"],"by_name":{"x":"`+turnText+`"},"slugs":[["ab"]],"revisions":{"x":1},
		"step":{"turn_id":"`+turnText+`","at":"1970-01-01T00:00:01Z","tags":["t"]},"started_at":"1970-01-01T00:00:02Z"}`, string(body))
	var again events.Ended
	require.NoError(t, json.Unmarshal(body, &again))
	require.Equal(t, p, again)
	var consumed turnevents.Ended
	require.NoError(t, json.Unmarshal(body, &consumed))
	require.Equal(t, turnText, consumed.TurnID.String())
	require.NoError(t, consumed.Validate())
	require.Error(t, json.Unmarshal([]byte(`{"turn_id":"x"}`), &again))
}

func TestText(t *testing.T) {
	t.Parallel()
	turn := ended().TurnID
	require.Equal(t, turnText+" "+turnText, fmt.Sprintf("%s %v", turn, turn))
	for _, form := range []string{turnText, "0192D4A0-6C7E-7B1A-9A53-0C3F5A9B2E11", "{" + turnText + "}"} {
		parsed, err := events.ParseTurnID(form)
		require.NoError(t, err)
		require.Equal(t, turn, parsed)
	}
	_, err := events.ParseTurnID("x")
	require.Error(t, err)
}

// TestKeys: keys, the tenant and headers render a scalar like its underlying type.
func TestKeys(t *testing.T) {
	t.Parallel()
	pool := outboxtest.Postgres(t)
	p := ended()
	const key = tenantText + "/" + turnText + "/a%2Fb/r7/-1"
	require.Equal(t, key, p.DedupeKey())
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		_, err := events.EnqueueEnded(t.Context(), tx, p, outbox.WithTenant(uuid.UUID(p.Tenant)))
		return err
	}))
	var got [5]string
	var version int64
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT tenant_id::text, dedupe_key, partition_key, entity_id, payload ->> 'turn_id', entity_version
		FROM outbox.event_status`).Scan(&got[0], &got[1], &got[2], &got[3], &got[4], &version))
	require.Equal(t, [5]string{tenantText, key, "l", turnText, turnText}, got)
	require.EqualValues(t, 7, version)
}

// TestRules: the bounds of a scalar apply wherever it is used, and an unset id is a field error.
func TestRules(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*events.Ended){
		"tenant is not set":                                  func(p *events.Ended) { p.Tenant = events.TenantID{} },
		"turn_id is not set":                                 func(p *events.Ended) { p.TurnID = events.TurnID{} },
		"started_at is not set":                              func(p *events.Ended) { p.StartedAt = time.Time{} },
		"step.turn_id is not set":                            func(p *events.Ended) { p.Step.TurnID = events.TurnID{} },
		"step.at is not set":                                 func(p *events.Ended) { p.Step.At = time.Time{} },
		"steps[0].at is not set":                             func(p *events.Ended) { p.Steps = []events.Step{p.Step}; p.Steps[0].At = time.Time{} },
		"last.turn_id is not set":                            func(p *events.Ended) { last := p.Step; p.Last = &last; p.Last.TurnID = events.TurnID{} },
		"slug has 1 character, at least 2 needed":            func(p *events.Ended) { p.Slug = "a" },
		"alias does not match ^[a-z/%-]+$":                   func(p *events.Ended) { p.Alias = pointer(events.Slug("AB")) },
		"slugs[0][0] has 1 character, at least 2 needed":     func(p *events.Ended) { p.Slugs[0][0] = "a" },
		"label is not valid UTF-8":                           func(p *events.Ended) { p.Label = "\xff" },
		"revision is below 1":                                func(p *events.Ended) { p.Revision = 0 },
		"revisions[*] is below 1":                            func(p *events.Ended) { p.Revisions["x"] = 0 },
		`outcome is not one of completed, N/A, a-b, a_b, ""`: func(p *events.Ended) { p.Outcome = "x" },
	} {
		p := ended()
		change(&p)
		err := p.Validate()
		require.EqualError(t, err, "validate turns/ended: "+want)
		require.ErrorIs(t, err, outbox.ErrPayloadInvalid)
	}
	p := ended()
	p.Outcome, p.Previous, p.SeenAt = events.OutcomeNone, new(events.TurnID), new(time.Time)
	require.NoError(t, p.Validate(), "what is optional may be zero, and an enum may have an empty value")
}

func TestEnum(t *testing.T) {
	t.Parallel()
	require.Equal(t, []events.Outcome{"completed", "N/A", "a-b", "a_b", ""}, events.OutcomeValues())
	for _, v := range events.OutcomeValues() {
		parsed, err := events.ParseOutcome(string(v))
		require.NoError(t, err)
		require.Equal(t, v, parsed)
		require.True(t, v.Known())
	}
	v, err := events.ParseOutcome("n/a")
	require.EqualError(t, err, `validate outcome: the value is not one of completed, N/A, a-b, a_b, ""`)
	require.Empty(t, v)
	require.False(t, events.Outcome("n/a").Known())
}

// TestInDatabases: scalars are parameters and results of pgx and database/sql.
func TestInDatabases(t *testing.T) {
	t.Parallel()
	pool := outboxtest.Postgres(t)
	p := ended()
	const query = "SELECT $1::uuid, $2::text, $3::bigint, $4::int, $1::uuid, NULL::uuid, $5::text"
	var id events.TurnID
	var slug events.Slug
	var revision events.Revision
	var rank events.Rank
	var same, none *events.TurnID
	var outcome events.Outcome
	into := []any{&id, &slug, &revision, &rank, &same, &none, &outcome}
	check := func() {
		require.Equal(t, p.TurnID, id)
		require.Equal(t, []any{p.Slug, p.Revision, p.Rank, p.Outcome}, []any{slug, revision, rank, outcome})
		require.Equal(t, &p.TurnID, same)
		require.Nil(t, none)
		id, slug, revision, rank, same, outcome = events.TurnID{}, "", 0, 0, nil, ""
	}
	require.NoError(t, pool.QueryRow(t.Context(), query, p.TurnID, p.Slug, p.Revision, p.Rank, p.Outcome).Scan(into...))
	check()
	db := stdlib.OpenDBFromPool(pool)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	require.NoError(t, db.QueryRowContext(t.Context(), query, p.TurnID, p.Slug, p.Revision, p.Rank, p.Outcome).Scan(into...))
	check()
	var found bool
	require.NoError(t, pool.QueryRow(t.Context(), "SELECT $1 = ANY($2::uuid[])", p.TurnID, []events.TurnID{p.TurnID}).Scan(&found))
	require.True(t, found)
}

// pointer is new with a value, which needs Go 1.26.
func pointer[T any](value T) *T { return &value }
