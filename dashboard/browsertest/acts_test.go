package browsertest

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/dashboard"
	"github.com/outboxgen/outboxgen/internal/testing/browser"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
)

// link is a selector of the link whose text is given, which the page must have.
func (tb *tab) link(text string) string {
	tb.T.Helper()
	tb.Until(fmt.Sprintf(`Array.from(document.querySelectorAll("main a")).some(function (a) { return a.innerText === %s; })`, browser.Quoted(text)))
	href := value[string](tb, fmt.Sprintf(`Array.from(document.querySelectorAll("main a")).find(function (a) { return a.innerText === %s; }).getAttribute("href")`, browser.Quoted(text)))
	return fmt.Sprintf("main a[href=%q]", href)
}

// act follows a link to an act, fills in the form, confirms, and returns what the page says then.
func (tb *tab) act(link string, fields ...string) string {
	tb.T.Helper()
	tb.follow(tb.link(link))
	for i := 0; i+1 < len(fields); i += 2 {
		tb.fill(fields[i], fields[i+1])
	}
	tb.follow(`form[method="post"].act button`)
	return tb.text(".done")
}

func lastAudit(t testing.TB, pool *pgxpool.Pool) string {
	t.Helper()
	return pgtest.Value[string](t, pool, "SELECT concat_ws(' ', who, act, nullif(why, ''), events) FROM outbox.audit ORDER BY no DESC LIMIT 1")
}

// TestActs does every act as somebody at a screen does it, with script and without.
func TestActs(t *testing.T) {
	t.Parallel()
	for _, script := range []bool{true, false} {
		t.Run(fmt.Sprintf("script %t", script), func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			pgtest.Execute(t, pool, seedSQL)
			pgtest.Execute(t, pool, `SELECT seed.event('jobs', 'mail', 'dead', n * interval '1 min', jsonb_build_object('errors', ARRAY['mailbox ' || n || ' is full'])) FROM generate_series(1, 3) AS n`)
			one := pgtest.Value[string](t, pool, `SELECT seed.event('jobs', 'print', 'dead', '1 h', '{"errors": ["no paper"]}')::text`)
			two := pgtest.Value[string](t, pool, `SELECT seed.event('jobs', 'print', 'dead', '1 h', '{"errors": ["no ink"]}')::text`)
			pgtest.Execute(t, pool, `SELECT seed.kept('cards', 'dead', '1 h', 'no such tenant ' || n, jsonb_build_object('id', gen_random_uuid(), 'key', n)) FROM generate_series(1, 2) AS n`)
			pgtest.Execute(t, pool, `SELECT seed.kept('cards', 'dead', '2 h', 'no such card', jsonb_build_object('id', gen_random_uuid(), 'key', 3))`)
			h := runtimetest.NewNotes()
			h.Fail = runtimetest.FailFor("b")
			l := runtimetest.ListenTo(t, pool, listener.Spec{}, listener.Config{}, h)
			runtimetest.PutAll(t, pool, "a1", "b1", "a2")
			runtimetest.DrainAll(t, l)
			tb := open(t, serve(t, dashboard.Config{Pool: pool, Prefix: "/ops"}))
			if !script {
				tb.NoScript()
			}

			// Pause and resume a topic.
			tb.visit("/")
			tb.follow(tb.link("jobs/mail"))
			require.Equal(t, "Paused. Running processes honour it within one poll interval.", tb.act("Pause…", "until", "2h", "why", "mail server moves"))
			require.Equal(t, 1, pgtest.Count(t, pool, "SELECT count(*)::int FROM outbox.pauses WHERE namespace = 'jobs' AND topic = 'mail' AND who = 'ada' AND until > now()"))
			require.Equal(t, "ada pause mail server moves 0", lastAudit(t, pool))
			tb.untilText("jobs/mail has been paused by ada")
			require.Equal(t, "Resumed.", tb.act("Resume…"))
			require.Zero(t, pgtest.Count(t, pool, "SELECT count(*)::int FROM outbox.pauses"))

			// Replay a group, after its count was shown.
			tb.visit("/dead")
			group := pgtest.Value[int](t, pool, "SELECT count(*)::int FROM outbox.dead_letters WHERE topic = 'mail'")
			tb.follow(`tr:has(a[href="/ops/topics/jobs/mail"]) a[id^="replay-"]`)
			require.Contains(t, tb.text(".preview"), fmt.Sprintf(": %d dead letters.", group))
			tb.follow(`form[method="post"].act button`)
			require.Equal(t, "3 replayed.", tb.text(".done"))
			require.Equal(t, 3, pgtest.Count(t, pool, "SELECT count(*)::int FROM outbox.queue WHERE topic = 'mail'"))
			require.Equal(t, "ada replay 3", lastAudit(t, pool))

			// Replay and discard one event.
			tb.visit("/events/" + one)
			require.Equal(t, "1 replayed.", tb.act("Replay…", "why", "paper is back"))
			require.Equal(t, "pending", pgtest.Value[string](t, pool, "SELECT status FROM outbox.event_status WHERE id = $1", one))
			require.Equal(t, "ada replay paper is back 1", lastAudit(t, pool))
			tb.visit("/events/" + two)
			require.Equal(t, "1 discarded.", tb.act("Discard…", "why", "not needed"))
			require.Zero(t, pgtest.Count(t, pool, "SELECT count(*)::int FROM outbox.dead_letters WHERE listener IS NULL"))
			require.Equal(t, "ada discard not needed 1", lastAudit(t, pool))

			// Replay and discard what a consumer has given up: the messages of an error, and one of them.
			tb.visit("/consumers")
			tb.follow(tb.link("cards"))
			tb.follow(`a[id^="replay-"]`) // the largest group is the first
			require.Regexp(t, `^Consumer cards, group \w+: 2 dead letters\.\s+They are parked again`, tb.text(".preview"))
			tb.fill("why", "tenant was added")
			tb.follow(`form[method="post"].act button`)
			require.Equal(t, "2 replayed.", tb.text(".done"))
			require.Equal(t, 2, pgtest.Count(t, pool, "SELECT count(*)::int FROM outbox.inbox_messages WHERE consumer_group = 'cards' AND status = 'parked' AND next_attempt_at <= now() AND attempts = 0"))
			require.Equal(t, "ada replay tenant was added 2", lastAudit(t, pool))
			tb.untilText("no such tenant 2") // among the parked ones
			require.Equal(t, 2, value[int](tb, `document.querySelectorAll('[aria-label="Parked"] tbody tr').length`))
			tb.follow(tb.link("kafka:users/0@3"))
			require.Equal(t, "1 discarded.", tb.act("Discard…", "why", "card is gone"))
			require.Equal(t, "Consumer cards", tb.text("h1"))
			require.Zero(t, pgtest.Count(t, pool, "SELECT count(*)::int FROM outbox.inbox_messages WHERE consumer_group = 'cards' AND status = 'dead'"))
			require.Equal(t, "ada discard card is gone 1", lastAudit(t, pool))

			// Pause, resume, skip, rewind and detach a listener.
			tb.visit("/listeners")
			tb.follow(tb.link("ears"))
			tb.act("Pause…")
			require.Equal(t, 1, pgtest.Count(t, pool, "SELECT count(*)::int FROM outbox.pauses WHERE listener = 'ears'"))
			tb.act("Resume…")
			require.Zero(t, pgtest.Count(t, pool, "SELECT count(*)::int FROM outbox.pauses"))
			require.Equal(t, "Skipped. The event is a dead letter of the listener now.", tb.act("Skip…", "why", "customer is gone"))
			require.Equal(t, runtimetest.IDOf(t, pool, "b1").String(), pgtest.Value[string](t, pool, "SELECT id::text FROM outbox.dead_letters WHERE listener = 'ears'"))
			require.Equal(t, "ada skip customer is gone 1", lastAudit(t, pool))
			runtimetest.DrainAll(t, l)

			tb.follow(tb.link("Rewind…"))
			tb.fill("to", "earliest")
			tb.follow(`form[method="get"].act button`)
			require.Contains(t, tb.text(".preview"), "Afterwards it has 3 events before it.")
			tb.fill("why", "index is rebuilt")
			tb.follow(`form[method="post"].act button`)
			require.Equal(t, "Rewound. The listener has 3 events before it.", tb.text(".done"))
			require.Equal(t, "ada rewind index is rebuilt 3", lastAudit(t, pool))
			require.Equal(t, 1, runtimetest.DrainAll(t, l).Retried, "it handles them again")

			require.Equal(t, "Detached. The log is no longer kept for the listener.", tb.act("Detach…", "why", "replaced"))
			require.Zero(t, pgtest.Count(t, pool, "SELECT count(*)::int FROM outbox.listeners"))
			require.Equal(t, "ada detach replaced 0", lastAudit(t, pool))
			tb.visit("/audit")
			require.Contains(t, tb.text("tbody tr"), "replaced")
		})
	}
}
