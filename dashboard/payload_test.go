package dashboard_test

import (
	"encoding/json"
	"html"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/dashboard"
	minichat "github.com/outboxgen/outboxgen/generator/testdata/minichat/want"
	people "github.com/outboxgen/outboxgen/generator/testdata/sensitive/want"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/outbox"
)

func TestEverythingIsShownAsText(t *testing.T) {
	t.Parallel()
	pool := busy(t)
	s := open(t, dashboard.Config{Pool: pool, Mask: dashboard.Unmasked, Title: hostile, TraceURL: "https://example.com/{trace_id}"})
	own := regexp.MustCompile(`<script src="/assets/[\w.-]+" defer></script>`)
	quoted := regexp.MustCompile(`"[^"]*"`)
	attribute := regexp.MustCompile(`<[a-z][^>]*\s(?:on\w+|style|srcdoc|hx-on[\w:-]*)\s*=`)
	shown := 0
	name := url.PathEscape(hostile+"1") + "/" + url.PathEscape(hostile)
	pages := append(everyPage(t, pool), "/topics/"+name, "/acts/replay?topic="+url.QueryEscape(hostile+"1/"+hostile), "/acts/nothing",
		"/events?error="+url.QueryEscape(hostile)+"&key="+url.QueryEscape(hostile), "/events?tenant="+url.QueryEscape(hostile), "/audit?who="+url.QueryEscape(hostile),
		"/?did="+url.QueryEscape(hostile), "/?did=replay&refused=1&because="+url.QueryEscape(hostile)+"&n="+url.QueryEscape(hostile), "/acts/pause?listener="+url.QueryEscape(hostile),
		"/acts/replay?consumer="+url.QueryEscape(hostile), "/acts/discard?consumer="+url.QueryEscape(hostile)+"&error="+url.QueryEscape(hostile))
	for _, path := range pages {
		a := s.get(path)
		require.Equal(t, 3, len(own.FindAllString(a.body, -1)), path)
		rest := own.ReplaceAllString(a.body, "")
		for _, part := range []string{"<script", "<img", "<b>", "onerror='"} {
			require.NotContains(t, rest, part, path)
		}
		require.Empty(t, attribute.FindAllString(quoted.ReplaceAllString(a.body, `""`), -1), path)
		require.NotContains(t, a.body, "ZgotmplZ", path)
		require.Equal(t, "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
			a.header.Get("Content-Security-Policy"), path)
		require.Equal(t, "nosniff", a.header.Get("X-Content-Type-Options"), path)
		require.Equal(t, "no-store", a.header.Get("Cache-Control"), path)
		shown += strings.Count(html.UnescapeString(rest), `<img src=x onerror=`)
	}
	require.Greater(t, shown, 30, "the test must meet its own values")
}

func TestSensitiveFieldsAreNotInTheSource(t *testing.T) {
	t.Parallel()
	pool := busy(t)
	masked := func(_ string, _ int, payload json.RawMessage) (json.RawMessage, bool) {
		return json.RawMessage(strings.ReplaceAll(string(payload), "swordfish", "[masked]")), true
	}
	unknown := func(string, int, json.RawMessage) (json.RawMessage, bool) { return nil, false }
	for name, test := range map[string]struct {
		mask func(string, int, json.RawMessage) (json.RawMessage, bool)
		want string
	}{
		"masked":  {masked, "[masked]"},
		"unknown": {unknown, "Not shown: it is not known which fields of this topic are sensitive."},
		"no mask": {nil, "Not shown: the page does not know which fields are sensitive."},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t, dashboard.Config{Pool: pool, Mask: test.mask})
			met := false
			for _, path := range everyPage(t, pool) {
				body := s.get(path).body
				require.NotContains(t, body, "swordfish", path)
				met = met || strings.Contains(body, test.want)
			}
			require.True(t, met)
		})
	}
}

func TestGeneratedCodeMasksPayloads(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	nickname := "<Ann>"
	person := people.Joined{PersonID: uuid.New(), Email: "swordfish@example.com", Pin: 471147, Tokens: []string{"swordfish"}, Nickname: &nickname, Home: people.Address{City: "Berlin"}}
	var joined, finished, other uuid.UUID
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		r, err := people.EnqueueJoined(t.Context(), tx, person)
		if err != nil {
			return err
		}
		joined = r.ID
		m := outbox.Message{Namespace: "mini_chat", Topic: "turn_finalized", Payload: json.RawMessage(`{"model": "small", "iban": "swordfish"}`)}
		if r, err = outbox.Enqueue(t.Context(), tx, "", m); err != nil {
			return err
		}
		finished = r.ID
		m = outbox.Message{Namespace: "people", Topic: "unknown", Payload: json.RawMessage(`"swordfish"`)}
		r, err = outbox.Enqueue(t.Context(), tx, "", m)
		other = r.ID
		return err
	}))
	s := open(t, dashboard.Config{Pool: pool, Mask: dashboard.Masks(people.MaskPayload, minichat.MaskPayload)})
	for id, want := range map[uuid.UUID][]string{
		joined:   {`"email": "[masked]"`, `"pin": "[masked]"`, `"tokens": "[masked]"`, `"nickname": "<Ann>"`, `"city": "Berlin"`},
		finished: {`"model": "small"`, `"iban": "[masked]"`},
		other:    {"Not shown: it is not known which fields of this topic are sensitive."},
	} {
		source := s.get("/events/" + id.String()).body
		require.NotContains(t, source, "swordfish")
		require.NotContains(t, source, "471147")
		for _, text := range want {
			require.Contains(t, html.UnescapeString(source), text)
		}
	}
}

func TestLargePayloadsAreNotShown(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	runtimetest.PutAll(t, pool, "a1")
	id := runtimetest.IDOf(t, pool, "a1").String()
	pgtest.Execute(t, pool, `UPDATE outbox.log SET payload = jsonb_build_object('text', repeat('x', 1 << 20))`)
	s := open(t, dashboard.Config{Pool: pool, Mask: dashboard.Unmasked})
	body := s.ok("/events/" + id)
	require.Contains(t, body, "Not shown: it has 1,048,5")
	require.Less(t, len(body), 50_000)
}
