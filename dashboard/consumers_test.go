package dashboard_test

import (
	"encoding/json"
	"html"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/dashboard"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
)

// putKept keeps n messages of a consumer group with a status. All that a message has of its producer contains text.
func putKept(t testing.TB, pool *pgxpool.Pool, group, status string, n int, text string) {
	t.Helper()
	pgtest.Execute(t, pool, `INSERT INTO outbox.inbox_messages (consumer_group, message_id, place, key, event_id, type, namespace, topic, version, envelope, body,
			status, attempts, next_attempt_at, error)
		SELECT $1, gen_random_uuid()::text, 'kafka:' || $4 || '@' || n, $4, gen_random_uuid(), $4, $4, $4, 1,
			json_build_object('content_type', 'application/json', 'attributes', json_build_object('type', $4::text), 'headers', json_build_object($4::text, $4::text)),
			convert_to(json_build_object('name', $4::text, 'secret', 'swordfish')::text, 'UTF8'), $2, 4, now() + interval '1 h', $4
		FROM generate_series(1, $3::int) AS n`, group, status, n, text)
}

func TestConsumersAreShown(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	s := open(t, dashboard.Config{Pool: pool, Mask: func(topic string, version int, payload json.RawMessage) (json.RawMessage, bool) {
		return json.RawMessage(strings.ReplaceAll(string(payload), "swordfish", "[masked]")), topic == "users/users" && version == 1
	}})
	require.Contains(t, s.ok("/consumers"), "No consumer keeps a message")
	require.Contains(t, s.ok("/consumers/cards"), "No dead letter")
	putKept(t, pool, "cards", "parked", 3, "users")
	putKept(t, pool, "cards", "dead", 120, "users")
	putKept(t, pool, "mail", "parked", 1, "mails")
	pgtest.Execute(t, pool, "UPDATE outbox.inbox_messages SET error = 'no such tenant', failed_at = clock_timestamp() WHERE no = (SELECT max(no) FROM outbox.inbox_messages WHERE status = 'dead')")
	pgtest.Execute(t, pool, "UPDATE outbox.inbox_messages SET next_attempt_at = now() - interval '1 h', error = 'timeout' WHERE consumer_group = 'mail'")
	pgtest.Eventually(t, func() bool { return strings.Contains(s.ok("/consumers"), ">mail<") })
	cells := regexp.MustCompile(`(?s)<tr>\s*<th[^>]*><a id="consumer-(\w+)".*?</tr>`)
	for _, path := range []string{"/", "/consumers"} {
		rows := cells.FindAllStringSubmatch(s.ok(path), -1)
		require.Len(t, rows, 2, path)
		for _, part := range []string{`<td class="num">3</td>`, `<td class="num bad">120</td>`, ">parked<", ">no such tenant</td>"} {
			require.Contains(t, rows[0][0], part, path)
		}
		for _, part := range []string{`<td class="num">1</td>`, `<td class="num zero">0</td>`, ">not tried<", ">timeout</td>"} {
			require.Contains(t, rows[1][0], part, path)
		}
	}

	// The dead letters of a group: page by page, newest first, by error and by filter.
	letter := regexp.MustCompile(`<a href="(/consumers/cards/\d+)">`)
	var seen []string
	path, pages := "/consumers/cards?topic=users/users", 0
	for ; path != ""; pages++ {
		body := s.ok(path)
		require.Equal(t, pages > 0, strings.Contains(body, ">First page<"))
		require.Equal(t, pages == 0, strings.Contains(body, "120 dead letters"), "the groups are on the first page")
		for _, m := range letter.FindAllStringSubmatch(body, -1) {
			require.NotContains(t, seen, m[1])
			seen = append(seen, m[1])
		}
		path = ""
		if next := regexp.MustCompile(`rel="next" href="([^"]*)"`).FindStringSubmatch(body); next != nil {
			path = html.UnescapeString(next[1])
		}
	}
	require.Equal(t, 3, pages)
	require.Len(t, seen, 120)
	require.Len(t, letter.FindAllString(s.ok("/consumers/cards?error=tenant"), -1), 1)
	group := s.link("/consumers/cards", "no such tenant")
	require.Contains(t, group, "/consumers/cards?group=")
	require.Len(t, letter.FindAllString(s.ok(group), -1), 1)
	require.Empty(t, letter.FindAllString(s.ok("/consumers/cards?topic=other/topic"), -1))
	for _, query := range []string{"before=x", "before=-1", "tenant=x", "since=x"} {
		require.Equal(t, http.StatusBadRequest, s.get("/consumers/cards?"+query).status, query)
	}

	message := html.UnescapeString(s.ok(seen[0]))
	for _, part := range []string{"no such tenant", "kafka:users@120", "users/users", `"secret": "[masked]"`, "dead after attempt 4", "<dt>ce_type</dt>", "Replay…"} {
		require.Contains(t, message, part)
	}
	require.NotContains(t, message, "swordfish")
	for _, path := range []string{"/consumers/mail/" + strings.TrimPrefix(seen[0], "/consumers/cards/"), "/consumers/cards/x", "/consumers/cards/999999", "/consumers/cards/0", "/consumers/cards/9223372036854775807"} {
		require.Equal(t, http.StatusNotFound, s.get(path).status, path)
	}
	pgtest.Execute(t, pool, "UPDATE outbox.inbox_messages SET body = '\\xff', event_id = NULL WHERE status = 'dead'")
	message = s.ok(seen[0])
	require.Contains(t, message, "Not shown: it is not JSON.")
	require.NotContains(t, message, "Replay…", "it has no id")
}

// TestParkedMessagesAreShown: the page of a consumer lists what is tried again, the next first, with the reason, and what waits
// behind it. Each message has a page with a masked body, and nothing can be done to it.
func TestParkedMessagesAreShown(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	s := open(t, dashboard.Config{Pool: pool, Mask: func(_ string, _ int, payload json.RawMessage) (json.RawMessage, bool) {
		return json.RawMessage(strings.ReplaceAll(string(payload), "swordfish", "[masked]")), true
	}})
	putKept(t, pool, "cards", "parked", 3, "users")
	putKept(t, pool, "cards", "parked", 1, "orders")
	putKept(t, pool, "mail", "parked", 1, "mails")
	pgtest.Execute(t, pool, "UPDATE outbox.inbox_messages SET max_attempts = 25, next_attempt_at = 'infinity', attempts = 0, error = 'it waits' WHERE topic = 'users' AND no > (SELECT min(no) FROM outbox.inbox_messages)")
	pgtest.Execute(t, pool, "UPDATE outbox.inbox_messages SET max_attempts = 25, next_attempt_at = now() + interval '9 min 30 s', error = 'no such tenant' WHERE next_attempt_at < 'infinity' AND topic = 'users'")
	numbers := pgtest.Value[[]string](t, pool, "SELECT array_agg(no::text ORDER BY no) FROM outbox.inbox_messages WHERE consumer_group = 'cards'")
	row := regexp.MustCompile(`(?s)<tr>\s*<th[^>]*><a href="/consumers/cards/(\d+)">.*?</tr>`)
	page := s.ok("/consumers/cards")
	rows := row.FindAllStringSubmatch(page, -1)
	require.Len(t, rows, 2, "those that wait are counted")
	require.Equal(t, []string{numbers[0], numbers[3]}, []string{rows[0][1], rows[1][1]}, "the next one first")
	for _, part := range []string{"users/users", `<td class="num">4</td>`, `<td class="num">21</td>`, `<td class="num">2</td>`, "in 9 min", ">no such tenant</td>"} {
		require.Contains(t, rows[0][0], part)
	}
	for _, part := range []string{`<td class="num">–</td>`, `<td class="num zero">0</td>`, "in 59 min", ">orders</td>"} {
		require.Contains(t, rows[1][0], part)
	}
	require.NotContains(t, page, "outboxgen dead parked")
	require.NotContains(t, page, "/acts/")
	for _, query := range []string{"?error=tenant", "?before=9"} {
		require.Empty(t, row.FindAllString(s.ok("/consumers/cards"+query), -1), "this is about dead letters")
	}

	for no, want := range map[string][]string{
		numbers[0]: {"attempt 4 failed", "<pre>no such tenant</pre>", "due: attempt 5 of 25", "<dt>Wait behind it</dt><dd>2</dd>", `"secret": "[masked]"`, "<dt>ce_type</dt>", "users/users"},
		numbers[1]: {"parked<pre>it waits</pre>", "waits behind an earlier message of its key", "<dt>Wait behind it</dt><dd>1</dd>", `"secret": "[masked]"`},
		numbers[3]: {"due: attempt 5</div>", "kafka:orders@1"},
	} {
		message := html.UnescapeString(s.ok("/consumers/cards/" + no))
		for _, part := range want {
			require.Contains(t, message, part, no)
		}
		require.NotContains(t, message, "swordfish")
		require.NotContains(t, message, "/acts/")
	}
	require.Equal(t, http.StatusNotFound, s.get("/consumers/mail/"+numbers[0]).status)

	// The page stays where it is when the message is given up, and when it is replayed.
	pgtest.Execute(t, pool, "UPDATE outbox.inbox_messages SET status = 'dead' WHERE no = $1::bigint", numbers[0])
	require.Contains(t, s.ok("/consumers/cards/"+numbers[0]), "dead after attempt 4")
	s.confirm(s.link("/consumers/cards/"+numbers[0], "Replay…"))
	require.Contains(t, s.ok("/consumers/cards/"+numbers[0]), "due: attempt 1 of 25")

	putKept(t, pool, "cards", "parked", 51, "many")
	page = s.ok("/consumers/cards")
	require.Len(t, row.FindAllString(page, -1), 50)
	require.Contains(t, page, "These are the next 50; <code>outboxgen dead parked</code> lists more.")
}

// TestActsOnDeadLettersOfConsumers: they are replayed and discarded from the page, by error and one by one, and the audit has it.
func TestActsOnDeadLettersOfConsumers(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	putKept(t, pool, "cards", "dead", 3, "users")
	putKept(t, pool, "mail", "dead", 2, "users")
	s := open(t, dashboard.Config{Pool: pool})
	count := func(status string) int {
		return pgtest.Count(t, pool, "SELECT count(*) FROM outbox.inbox_messages WHERE consumer_group = 'cards' AND status = '"+status+"'")
	}
	first := "/consumers/cards/" + pgtest.Value[string](t, pool, "SELECT min(no)::text FROM outbox.inbox_messages")

	discard := s.link(first, "Discard…")
	require.Contains(t, s.ok(discard), "the consumer never applies them")
	require.Equal(t, http.StatusBadRequest, s.confirm(discard).status, "it needs a reason")
	back := s.confirm(discard, "why", "test data")
	require.Equal(t, "1 discarded.", said(t, back))
	require.Equal(t, "/consumers/cards?did=discard&n=1&of=1", back.url)
	require.Equal(t, 2, count("dead"))
	require.Equal(t, http.StatusNotFound, s.get(first).status)

	replay := s.link("/consumers/cards", "Replay…")
	form := s.form(replay)
	require.Equal(t, []string{"cards", "2"}, []string{form.Get("consumer"), form.Get("count")})
	require.Contains(t, s.ok(replay), "They are parked again")
	require.Equal(t, 2, count("dead"), "to look changes nothing")
	back = s.confirm(replay, "why", "tenant was added")
	require.Equal(t, "2 replayed.", said(t, back))
	require.Equal(t, "/consumers/cards?did=replay&n=2&of=2", back.url)
	require.Equal(t, []int{2, 0}, []int{count("parked"), count("dead")})
	require.Equal(t, "tester discard test data 1; tester replay tenant was added 2", audits(t, pool))
	require.Equal(t, 2, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.inbox_messages WHERE consumer_group = 'mail' AND status = 'dead'"), "those of another consumer stay")
	require.Contains(t, s.ok("/audit"), "consumer cards")

	readOnly := open(t, dashboard.Config{Pool: pool, ReadOnly: true})
	require.NotContains(t, readOnly.ok("/consumers/mail"), "/acts/")
	a := readOnly.send(readOnly.request(http.MethodPost, "/acts/discard", url.Values{"consumer": {"mail"}, "count": {"9"}, "why": {"x"}}))
	require.Equal(t, http.StatusMethodNotAllowed, a.status)
}
