package runtimetest_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/eventkey"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/payload"
	"github.com/outboxgen/outboxgen/queue"
)

// part is what a build has for one topic.
type part struct {
	name    string // namespace/topic
	enqueue func(ctx context.Context, tx pgx.Tx, n int) error
	queue   func(got *[]string) queue.Handler
	log     func(got *[]string) listener.Handler
}

// spec describes a topic of a recipe. Its namespace is turns.
func spec(log bool, name string, version int, history ...payload.Upcaster) outbox.TopicSpec {
	return outbox.TopicSpec{
		Namespace: "turns", Name: name, Version: version, Strict: true, Log: log, History: history,
		Retry: outbox.Retry{MaxAttempts: 3},
	}
}

// partOf returns the topic of s with payloads that make makes. show is what a handler notes.
func partOf[P any](s outbox.TopicSpec, make func(n int) P, show func(P) string) part {
	topic := outbox.NewTopic[P](s)
	return part{
		name: s.Namespace + "/" + s.Name,
		enqueue: func(ctx context.Context, tx pgx.Tx, n int) error {
			_, err := topic.Enqueue(ctx, tx, make(n))
			return err
		},
		queue: func(got *[]string) queue.Handler {
			h := noting[P]{got, show}
			return queue.Handle(topic, h, h.handle)
		},
		log: func(got *[]string) listener.Handler {
			h := noting[P]{got, show}
			return listener.Handle(topic, h, h.handle)
		},
	}
}

type noting[P any] struct {
	got  *[]string
	show func(P) string
}

func (h noting[P]) handle(_ context.Context, d outbox.Delivery[P]) error {
	*h.got = append(*h.got, d.Topic+": "+h.show(d.Payload))
	return nil
}

// build is a version of a program: its topics by name.
type build []part

// step is what one build does: it enqueues events, as "topic n", and then handles what is due and what it knows.
type step struct {
	does    string
	build   string
	enqueue []string
	idle    bool     // it handles nothing
	handled []string // "topic: payload"
	inLog   []string // the same for log topics, where it differs: a listener waits at the first event that it does not know
	differs bool     // inLog counts
	dead    int      // more dead letters
}

// recipe is one of docs/change/evolution.md. After its steps nothing waits.
type recipe struct {
	builds func(log bool) map[string]build
	steps  []step
	queues bool // only for queue topics
}

func (r recipe) run(t *testing.T, log bool) {
	pool := pgtest.Plain(t)
	builds := r.builds(log)
	enqueued, handled, dead := 0, 0, 0
	for i, s := range r.steps {
		what := fmt.Sprintf("step %d: %s", i+1, s.does)
		b, known := builds[s.build]
		require.True(t, known, what)
		for _, text := range s.enqueue {
			var name string
			var n int
			_, err := fmt.Sscan(text, &name, &n)
			require.NoError(t, err, what)
			at := slices.IndexFunc(b, func(p part) bool { return p.name == name })
			require.GreaterOrEqual(t, at, 0, what)
			require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error { return b[at].enqueue(t.Context(), tx, n) }), what)
			enqueued++
		}
		var got []string
		if !s.idle {
			b.drain(t, pool, log, &got)
		}
		want := s.handled
		if log && s.differs {
			want = s.inLog
		}
		require.ElementsMatch(t, want, got, what)
		handled += len(got)
		dead += s.dead
		require.Equal(t, dead, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.dead_letters"), what)
		require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.queue WHERE attempts > 0"), "%s: an event that waits was charged", what)
		require.Zero(t, pgtest.Count(t, pool, "SELECT coalesce(sum(retry_count), 0)::int FROM outbox.listeners"), "%s: an event that waits was charged", what)
	}
	require.Equal(t, enqueued, handled+dead, "after the last step an event waits or is lost")
}

// drain runs the dispatchers of b, one per namespace, or its listener.
func (b build) drain(t *testing.T, pool *pgxpool.Pool, log bool, got *[]string) {
	t.Helper()
	if log {
		var handlers []listener.Handler
		for _, p := range b {
			handlers = append(handlers, p.log(got))
		}
		l, err := listener.New(pool, listener.Spec{Name: "ears"}, listener.Config{Logger: runtimetest.DiscardLogger(), Concurrency: 1}, handlers...)
		require.NoError(t, err)
		runtimetest.DrainAll(t, l)
		return
	}
	namespaces := make(map[string][]queue.Handler)
	for _, p := range b {
		h := p.queue(got)
		namespace, _, _ := strings.Cut(p.name, "/")
		namespaces[namespace] = append(namespaces[namespace], h)
	}
	cfg := runtimetest.QuickConfig()
	cfg.Concurrency = 1
	for _, handlers := range namespaces {
		_, err := runtimetest.Dispatcher(t, pool, cfg, handlers...).Drain(t.Context())
		require.NoError(t, err)
	}
}

// The payloads of the recipes.
type (
	turn struct {
		ID string `json:"id"`
	}
	turnNote struct {
		ID   string  `json:"id"`
		Note *string `json:"note,omitempty"`
	}
	turnModel struct {
		ID    string `json:"id"`
		Model string `json:"model"`
	}
	turnSeconds struct {
		ID      string `json:"id"`
		Seconds int64  `json:"seconds"`
	}
	turnTook struct {
		ID   string `json:"id"`
		Took int64  `json:"took"`
	}
	turnMaybe struct {
		ID      string `json:"id"`
		Seconds *int64 `json:"seconds,omitempty"`
	}
	turnText struct {
		ID     string `json:"id"`
		Amount string `json:"amount"`
	}
	turnNumber struct {
		ID     string `json:"id"`
		Amount int64  `json:"amount"`
	}
)

func newTurn(n int) turn               { return turn{ID: strconv.Itoa(n)} }
func showTurn(p turn) string           { return p.ID }
func newSeconds(n int) turnSeconds     { return turnSeconds{strconv.Itoa(n), int64(n)} }
func showSeconds(p turnSeconds) string { return fmt.Sprint(p.ID, " ", p.Seconds, "s") }

// raised are the steps of each recipe that raises a version: old events in new builds, new events that wait for a new
// build, and a rollback. old and as are what builds make of the old event 1, as an old and as a new build shows it, and
// fresh of the new event 2.
func raised(old, as, fresh func(n int) string) []step {
	const topic = "turns/ended"
	of := func(show func(int) string, ns ...int) (list []string) {
		for _, n := range ns {
			list = append(list, "ended: "+show(n))
		}
		return list
	}
	return []step{
		{does: "only the old build runs", build: "old", enqueue: []string{topic + " 1"}, handled: of(old, 1)},
		{does: "an old process enqueues, and dies", build: "old", enqueue: []string{topic + " 2"}, idle: true},
		{does: "the new build handles the old event", build: "new", handled: of(as, 2)},
		{does: "a new process enqueues, and dies", build: "new", enqueue: []string{topic + " 3"}, idle: true},
		{does: "the old build leaves the new event", build: "old"},
		{does: "rolled back: the old build continues", build: "old", enqueue: []string{topic + " 4"}, handled: of(old, 4), differs: true},
		{does: "deployed again: nothing is left", build: "new", enqueue: []string{topic + " 5"}, handled: of(fresh, 3, 5), differs: true,
			inLog: append(of(fresh, 3, 5), of(as, 4)...)},
	}
}

func nth(format string) func(int) string { return func(n int) string { return fmt.Sprintf(format, n) } }

func recipes() map[string]recipe {
	oldTurn := func(log bool) build { return build{partOf(spec(log, "ended", 1), newTurn, showTurn)} }
	return map[string]recipe{
		"add an optional field": {
			builds: func(log bool) map[string]build {
				note := "n"
				make := func(n int) turnNote { return turnNote{strconv.Itoa(n), &note} }
				show := func(p turnNote) string { return fmt.Sprint(p.ID, " ", p.Note != nil) }
				return map[string]build{"old": oldTurn(log), "new": {partOf(spec(log, "ended", 1), make, show)}}
			},
			steps: []step{
				{does: "old events in the new build", build: "old", enqueue: []string{"turns/ended 1"}, idle: true},
				{does: "have no note", build: "new", enqueue: []string{"turns/ended 2"}, handled: []string{"ended: 1 false", "ended: 2 true"}},
				{does: "new events in the old build", build: "new", enqueue: []string{"turns/ended 3"}, idle: true},
				{does: "are handled", build: "old", handled: []string{"ended: 3"}},
			},
		},
		"add a required field": {
			builds: func(log bool) map[string]build {
				up := payload.Upcast(1, func(old turn) (turnModel, error) { return turnModel{old.ID, "unknown"}, nil })
				make := func(n int) turnModel { return turnModel{strconv.Itoa(n), "m"} }
				show := func(p turnModel) string { return p.ID + " " + p.Model }
				return map[string]build{"old": oldTurn(log), "new": {partOf(spec(log, "ended", 2, up), make, show)}}
			},
			steps: raised(nth("%d"), nth("%d unknown"), nth("%d m")),
		},
		"rename a field": {
			builds: func(log bool) map[string]build {
				up := payload.Upcast(1, func(old turnSeconds) (turnTook, error) { return turnTook{old.ID, old.Seconds}, nil })
				make := func(n int) turnTook { return turnTook{strconv.Itoa(n), int64(n)} }
				show := func(p turnTook) string { return fmt.Sprint(p.ID, " took ", p.Took) }
				return map[string]build{
					"old": {partOf(spec(log, "ended", 1), newSeconds, showSeconds)},
					"new": {partOf(spec(log, "ended", 2, up), make, show)},
				}
			},
			steps: raised(nth("%[1]d %[1]ds"), nth("%[1]d took %[1]d"), nth("%[1]d took %[1]d")),
		},
		"remove a field": {
			builds: func(log bool) map[string]build {
				optional := payload.Upcast(1, func(old turnSeconds) (turnMaybe, error) { return turnMaybe{old.ID, &old.Seconds}, nil })
				gone := payload.Upcast(2, func(old turnMaybe) (turn, error) { return turn{old.ID}, nil })
				show := func(p turnMaybe) string { return fmt.Sprint(p.ID, " ", p.Seconds != nil) }
				return map[string]build{
					"required": {partOf(spec(log, "ended", 1), newSeconds, showSeconds)},
					"optional": {partOf(spec(log, "ended", 2, optional), func(n int) turnMaybe { return turnMaybe{ID: strconv.Itoa(n)} }, show)},
					"gone":     {partOf(spec(log, "ended", 3, optional, gone), newTurn, showTurn)},
				}
			},
			steps: []step{
				{does: "version 1 is enqueued", build: "required", enqueue: []string{"turns/ended 1", "turns/ended 2"}, handled: []string{"ended: 1 1s", "ended: 2 2s"}},
				{does: "and once more", build: "required", enqueue: []string{"turns/ended 3"}, idle: true},
				{does: "optional: the old value is taken along", build: "optional", enqueue: []string{"turns/ended 4"}, handled: []string{"ended: 3 true", "ended: 4 false"}},
				{does: "versions 1 and 2 wait for the last build", build: "required", enqueue: []string{"turns/ended 5"}, idle: true},
				{does: "version 2", build: "optional", enqueue: []string{"turns/ended 6"}, idle: true},
				{does: "both steps run", build: "gone", enqueue: []string{"turns/ended 7"}, handled: []string{"ended: 5", "ended: 6", "ended: 7"}},
			},
		},
		"change the type of a field": {
			builds: func(log bool) map[string]build {
				up := payload.Upcast(1, func(old turnText) (turnNumber, error) {
					n, err := strconv.ParseInt(old.Amount, 10, 64)
					if err != nil {
						return turnNumber{}, errors.New("amount is not a number")
					}
					return turnNumber{old.ID, n}, nil
				})
				make := func(n int) turnText {
					if n == 2 {
						return turnText{"2", "many"}
					}
					return turnText{strconv.Itoa(n), strconv.Itoa(n)}
				}
				show := func(p turnNumber) string { return fmt.Sprint(p.ID, " ", p.Amount) }
				return map[string]build{
					"old": {partOf(spec(log, "ended", 1), make, func(p turnText) string { return p.ID })},
					"new": {partOf(spec(log, "ended", 2, up), func(n int) turnNumber { return turnNumber{strconv.Itoa(n), int64(n)} }, show)},
				}
			},
			steps: []step{
				{does: "old values", build: "old", enqueue: []string{"turns/ended 1", "turns/ended 2"}, idle: true},
				{does: "one cannot be converted", build: "new", enqueue: []string{"turns/ended 3"}, handled: []string{"ended: 1 1", "ended: 3 3"}, dead: 1},
			},
		},
		"rename a topic": {
			builds: func(log bool) map[string]build {
				renamed := spec(log, "finished", 1)
				renamed.RenamedFrom = []string{"ended"}
				return map[string]build{"old": oldTurn(log), "new": {partOf(renamed, newTurn, showTurn)}}
			},
			steps: []step{
				{does: "the old name", build: "old", enqueue: []string{"turns/ended 1"}, idle: true},
				{does: "the new build gets both names", build: "new", enqueue: []string{"turns/finished 2"}, handled: []string{"ended: 1", "finished: 2"}},
				{does: "old processes still enqueue the old name", build: "old", enqueue: []string{"turns/ended 3"}, idle: true},
				{does: "and it is handled", build: "new", handled: []string{"ended: 3"}},
			},
		},
		"rename a topic, rolled back": {
			queues: true, // a listener passes what is not its topic: see the recipe
			builds: func(log bool) map[string]build {
				renamed := spec(log, "finished", 1)
				renamed.RenamedFrom = []string{"ended"}
				return map[string]build{"old": oldTurn(log), "new": {partOf(renamed, newTurn, showTurn)}}
			},
			steps: []step{
				{does: "the new name", build: "new", enqueue: []string{"turns/finished 1"}, idle: true},
				{does: "waits for a new process", build: "old", enqueue: []string{"turns/ended 2"}, handled: []string{"ended: 2"}},
				{does: "and gets one", build: "new", handled: []string{"finished: 1"}},
			},
		},
		"split a topic": {
			builds: func(log bool) map[string]build {
				changed := partOf(spec(log, "changed", 1), newTurn, showTurn)
				paid, shipped := partOf(spec(log, "paid", 1), newTurn, showTurn), partOf(spec(log, "shipped", 1), newTurn, showTurn)
				return map[string]build{"before": {changed}, "both": {changed, paid, shipped}, "after": {paid, shipped}}
			},
			steps: []step{
				{does: "before", build: "before", enqueue: []string{"turns/changed 1"}, idle: true},
				{does: "handlers of all three", build: "both", enqueue: []string{"turns/changed 2"}, handled: []string{"changed: 1", "changed: 2"}},
				{does: "producers change", build: "both", enqueue: []string{"turns/paid 3", "turns/shipped 4"}, idle: true},
				{does: "rolled back by one step", build: "both", enqueue: []string{"turns/changed 5"}, handled: []string{"paid: 3", "shipped: 4", "changed: 5"}},
				{does: "the old topic is drained and retired", build: "after", enqueue: []string{"turns/paid 6"}, handled: []string{"paid: 6"}},
			},
		},
		"move a topic to another namespace": {
			builds: func(log bool) map[string]build {
				moved := spec(log, "ended", 1)
				moved.Namespace = "chat"
				from, to := partOf(spec(log, "ended", 1), newTurn, showTurn), partOf(moved, newTurn, showTurn)
				return map[string]build{"before": {from}, "both": {from, to}, "after": {to}}
			},
			steps: []step{
				{does: "before", build: "before", enqueue: []string{"turns/ended 1"}, idle: true},
				{does: "dispatchers of both", build: "both", enqueue: []string{"turns/ended 2", "chat/ended 3"}, handled: []string{"ended: 1", "ended: 2", "ended: 3"}},
				{does: "the old one is drained and retired", build: "after", enqueue: []string{"chat/ended 4"}, handled: []string{"ended: 4"}},
			},
		},
		"retire a topic too early": {
			queues: true,
			builds: func(log bool) map[string]build {
				other := partOf(spec(log, "begun", 1), newTurn, showTurn)
				return map[string]build{"before": append(oldTurn(log), other), "after": {other}}
			},
			steps: []step{
				{does: "an event is left", build: "before", enqueue: []string{"turns/ended 1"}, idle: true},
				{does: "nobody takes it", build: "after", enqueue: []string{"turns/begun 2"}, handled: []string{"begun: 2"}},
				{does: "until the topic is back", build: "before", handled: []string{"ended: 1"}},
			},
		},
	}
}

// TestRecipesOfEvolution runs the recipes of docs/change/evolution.md with an old and a new build, for queue and log topics. No event
// is lost, dead, charged or misread, and nothing waits once a build that knows it is there.
func TestRecipesOfEvolution(t *testing.T) {
	t.Parallel()
	for name, r := range recipes() {
		for _, log := range []bool{false, true} {
			if log && r.queues {
				continue
			}
			t.Run(fmt.Sprintf("%s, log %t", name, log), func(t *testing.T) {
				t.Parallel()
				r.run(t, log)
			})
		}
	}
}

// TestAnOldListenerPassesANewTopic: a listener passes what is not among its topics, so that a new topic or name needs new
// listeners before new producers. A rewind brings back what an old process has passed.
func TestAnOldListenerPassesANewTopic(t *testing.T) {
	t.Parallel()
	pool := pgtest.Plain(t)
	r := recipes()["rename a topic"].builds(true)
	begin := pgtest.Value[time.Time](t, pool, "SELECT clock_timestamp()")
	pgtest.InTx(t, pool, func(tx pgx.Tx) { require.NoError(t, r["new"][0].enqueue(t.Context(), tx, 1)) })
	var got []string
	r["old"].drain(t, pool, true, &got)
	r["new"].drain(t, pool, true, &got)
	require.Empty(t, got, "the old build has passed it")
	runtimetest.Rewind(t, runtimetest.AdminOf(t, pool), begin)
	r["new"].drain(t, pool, true, &got)
	require.Equal(t, []string{"finished: 1"}, got)
}

// TestRecipeRetire: a topic is drained when nothing of it waits any more, and an event that is left keeps it.
func TestRecipeRetire(t *testing.T) {
	t.Parallel()
	for _, log := range []bool{false, true} {
		pool := pgtest.Plain(t)
		b := build{partOf(spec(log, "ended", 1), newTurn, showTurn)}
		var got []string
		b.drain(t, pool, log, &got) // attaches the listener
		pgtest.InTx(t, pool, func(tx pgx.Tx) { require.NoError(t, b[0].enqueue(t.Context(), tx, 1)) })
		drained := func() bool {
			d, err := runtimetest.AdminOf(t, pool).Drained(t.Context(), "turns/ended", 0)
			require.NoError(t, err)
			return d.Is()
		}
		require.False(t, drained())
		b.drain(t, pool, log, &got)
		require.Equal(t, []string{"ended: 1"}, got)
		require.True(t, drained())
	}
}

// TestRecipeChangeDedupeKey: builds with different templates do not see each other's duplicates; each sees its own.
func TestRecipeChangeDedupeKey(t *testing.T) {
	t.Parallel()
	keyed := func(version int, prefix string) outbox.Topic[turn] {
		s := spec(false, "ended", version)
		s.Keys = func(p any) outbox.Keys {
			return outbox.Keys{Dedupe: eventkey.NewKey(eventkey.StringPart("id", p.(*turn).ID).Affix(prefix, ""))}
		}
		return outbox.NewTopic[turn](s)
	}
	before, after := keyed(1, ""), keyed(2, "turn-")
	pool := pgtest.Plain(t)
	pgtest.InTx(t, pool, func(tx pgx.Tx) {
		for _, topic := range []outbox.Topic[turn]{before, after} {
			for _, duplicate := range []bool{false, true} {
				r, err := topic.Enqueue(t.Context(), tx, turn{"1"})
				require.NoError(t, err)
				require.Equal(t, duplicate, r.Duplicate)
			}
		}
	})
}
