package attack_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/dashboard"
	people "github.com/outboxgen/outboxgen/generator/testdata/sensitive/want"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/outboxtest"
	"github.com/outboxgen/outboxgen/payload"
)

// marker is in every sensitive field, and nowhere else.
const marker = "471147114711"

// greeter is a handler that tells all that it has about the first event, panics with the second, and gives up the others.
type greeter struct {
	people.UnimplementedPeopleHandlers
	told func(d any)
	n    int
}

func (g *greeter) HandleJoined(_ context.Context, d outbox.Delivery[people.Joined]) error {
	g.told(d)
	g.n++
	if g.n == 2 {
		panic(d.Payload)
	}
	return outbox.Permanent(fmt.Errorf("cannot greet %v, %+v, %#v, %s, %q", d, d.Payload, d.Payload, d.Payload.Wallet, d.Payload.Wallet.Cards))
}

// failing is a test that remembers why it has failed.
type failing struct {
	testing.TB
	text strings.Builder
}

func (f *failing) Helper()                        {}
func (f *failing) Errorf(format string, a ...any) { _, _ = fmt.Fprintf(&f.text, format, a...) }
func (f *failing) Logf(format string, a ...any)   { _, _ = fmt.Fprintf(&f.text, format, a...) }
func (f *failing) Fatalf(format string, a ...any) { f.Errorf(format, a...); f.FailNow() }
func (f *failing) FailNow()                       { panic(errFailed) }
func (f *failing) Error(a ...any)                 { _, _ = fmt.Fprint(&f.text, a...) }
func (f *failing) Fatal(a ...any)                 { f.Error(a...); f.FailNow() }

var errFailed = errors.New("the test has failed")

// TestSensitiveValuesAppearNowhere: the values of sensitive fields are in no error, log line, failed test, column for errors or
// page, when handlers print what they get, panic with it, or meet payloads that they cannot decode.
func TestSensitiveValuesAppearNowhere(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	spy := runtimetest.NewLogSpy()
	var seen strings.Builder
	look := func(where, text string) {
		require.NotContains(t, text, marker, where)
		_, _ = seen.WriteString(text)
	}
	phone := marker
	person := func() people.Joined {
		return people.Joined{
			PersonID: uuid.New(), Email: marker + "@example.com", Phone: &phone, Pin: 471147, Tokens: []string{marker}, Home: people.Address{City: "Berlin"},
			Wallet: &people.Wallet{Cards: []people.Card{{Number: marker, Expires: payload.Date{Year: 2030, Month: 1, Day: 1}}}, Named: map[string]people.Card{}},
		}
	}
	enqueue := func(p people.Joined) (err error) {
		return pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			_, err := people.EnqueueJoined(t.Context(), tx, p)
			return err
		})
	}
	for range 3 {
		require.NoError(t, enqueue(person()))
	}
	wrong := person()
	wrong.Email = strings.Repeat(marker, 30)
	wrong.Wallet.Cards[0].Number = marker + "x"
	err := enqueue(wrong)
	require.Error(t, err)
	look("an enqueue of what is not valid", err.Error()+fmt.Sprintf("%+v %#v", err, err))
	pgtest.InTx(t, pool, func(tx pgx.Tx) {
		_, err := people.NewFakePeople().EnqueueJoined(t.Context(), tx, wrong)
		require.Error(t, err)
		look("the fake", err.Error())
	})
	f := &failing{TB: t}
	func() {
		defer func() { require.Equal(t, errFailed, recover()) }()
		outboxtest.RequireEnqueued(f, pool, people.JoinedTopic, func(people.Joined) bool { return false })
	}()
	look("a failed test", f.text.String())
	pgtest.Execute(t, pool, `UPDATE outbox.events SET payload = payload || jsonb_build_object('pin', $1::text) WHERE id = (SELECT max(id::text)::uuid FROM outbox.events)`, marker)

	cfg := runtimetest.QuickConfig()
	cfg.Concurrency, cfg.Logger = 1, spy.Logger()
	d, err := people.NewPeopleDispatcher(pool, &greeter{told: func(d any) {
		spy.Logger().Info("got", "delivery", d)
		look("a delivery", fmt.Sprintf("%v %+v %#v", d, d, d))
	}}, cfg)
	require.NoError(t, err)
	report, err := d.Drain(t.Context())
	require.NoError(t, err)
	require.Equal(t, 2, report.Dead, "%+v", report)
	require.Equal(t, 1, report.Retried, "%+v", report)
	log := spy.String()
	look("the log", log)
	require.Contains(t, log, "[masked]")
	look("the errors in the tables", pgtest.Value[string](t, pool, `SELECT coalesce(string_agg(x::text, ' '), '') FROM (
		SELECT to_jsonb(d) - 'payload' AS x FROM outbox.dead_letters AS d UNION ALL SELECT to_jsonb(q) FROM outbox.queue AS q) AS x`))
	letters, err := runtimetest.AdminOf(t, pool).DeadLetters(t.Context(), admin.Filter{}, 0, 10)
	require.NoError(t, err)
	require.Len(t, letters, 2)

	page, err := dashboard.New(dashboard.Config{
		Pool: pool, Mask: people.MaskPayload, Logger: spy.Logger(), Authorize: func(*http.Request) (string, error) { return "tester", nil },
	})
	require.NoError(t, err)
	defer page.Close()
	server := httptest.NewServer(page)
	defer server.Close()
	for _, path := range []string{"/", "/events", "/dead", "/topics/people/joined", "/events/" + letters[0].ID.String(), "/events/" + letters[1].ID.String()} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+path, nil)
		require.NoError(t, err)
		resp, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, http.StatusOK, resp.StatusCode, path)
		look("the page "+path, string(body))
	}
	require.Greater(t, strings.Count(seen.String(), "[masked]"), 10, "the test must meet what is masked")
	require.NotContains(t, seen.String(), "471147", "the pin")
}
