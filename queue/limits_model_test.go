package queue_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue"
)

const (
	modelWorkers = 3
	modelSteps   = 120
	modelLease   = time.Minute
	modelPeriod  = 64 * time.Second // its 64th is a second
)

// modelTopics are the topics as an edition of the program has them. The turns of edition 1 differ, and some of its values.
func modelTopics(edition int) []outbox.Topic[runtimetest.Job] {
	rate := func(n int) outbox.Rate { return outbox.Rate{Events: n + edition, Period: modelPeriod} }
	all := []outbox.Topic[runtimetest.Job]{
		runtimetest.LimitedJobs("all", outbox.Limit{Concurrency: 6 + edition}, outbox.Limit{Per: outbox.PerTenant, Concurrency: 3}, outbox.Limit{Per: "{secret}", Concurrency: 2, Rate: rate(4)}),
		runtimetest.LimitedJobs("one", outbox.Limit{Per: outbox.PerDestination, Concurrency: 1}, outbox.Limit{Rate: rate(20)}),
		runtimetest.LimitedJobs("wide", outbox.Limit{Concurrency: 60}, outbox.Limit{Per: outbox.PerTenant, Concurrency: 25 - edition}),
		runtimetest.JobTopic("fair"),
		runtimetest.JobTopic("plain"),
	}
	for i := range all {
		all[i] = runtimetest.Altered(all[i], func(s *outbox.TopicSpec) {
			s.Retry.MaxAttempts = 3
			if s.Name == "fair" || s.Name != "plain" && edition == 0 {
				s.Fairness = outbox.FairnessTenant
			}
		})
	}
	return all
}

// modelRow is an event that is not final.
type modelRow struct {
	ID            uuid.UUID
	Topic, Turn   string
	Tenant        uuid.UUID
	Due, Until    time.Time
	Leased        bool
	Attempts, Max int
	Claim         int64
}

// modelState is what the tables say at a time.
type modelState struct {
	now    time.Time
	rows   map[uuid.UUID]*modelRow
	values map[string]map[string]values // in force, by topic and per
	tags   map[string]string            // by topic
	live   map[modelKey]int
}

// modelKey is a key of a limit of a topic.
type modelKey struct {
	topic string
	limitKey
}

// modelStart is when an attempt began, within the time of its claim. It is in the time of the model.
type modelStart struct{ from, to time.Time }

// modelWalk is a walk of a worker with a cursor, and the events that might have started all the time since it began.
type modelWalk struct {
	cursor *queue.Cursor
	cfg    queue.ClaimConfig
	owed   map[uuid.UUID]bool
}

// limitsModel plays a random schedule of operations on the tables, and compares what they say after each step.
type limitsModel struct {
	t        testing.TB
	rnd      *rand.Rand
	pool     *pgxpool.Pool
	admin    *admin.Admin
	editions [2]*queue.Dispatcher
	edition  int
	stores   []*queue.Store
	held     [][]queue.Claimed
	walks    []*modelWalk
	referees map[string]*referee // know the keys of turns
	paused   map[admin.Scope]bool
	starts   map[modelKey][]modelStart
	shift    time.Duration // by which the model is ahead of the clock
	n        int64
	trace    []string
	stats    map[string]int
}

func newLimitsModel(t testing.TB, seed uint64) *limitsModel {
	pool := pgtest.Database(t)
	m := &limitsModel{
		t: t, rnd: rand.New(rand.NewPCG(seed, 0)), pool: pool, admin: runtimetest.AdminOf(t, pool), held: make([][]queue.Claimed, modelWorkers),
		walks: make([]*modelWalk, modelWorkers), referees: make(map[string]*referee), paused: make(map[admin.Scope]bool),
		starts: make(map[modelKey][]modelStart), stats: make(map[string]int),
	}
	for i := range m.editions {
		var handlers []queue.Handler
		for _, topic := range modelTopics(i) {
			handlers = append(handlers, m.handler(topic))
			spec := topic.Untyped().Spec()
			m.referees[spec.Name] = refereeOf(spec.Name, spec.Limits)
		}
		cfg := runtimetest.QuickConfig()
		m.editions[i] = runtimetest.Dispatcher(t, pool, cfg, handlers...)
	}
	m.require(queue.Declare(t.Context(), m.editions[0]))
	for range modelWorkers {
		s, err := queue.NewStore(pool, queue.StoreConfig{Namespace: "jobs"})
		m.require(err)
		m.stores = append(m.stores, s)
	}
	return m
}

func (m *limitsModel) handler(topic outbox.Topic[runtimetest.Job]) queue.Handler {
	return runtimetest.OnJob(topic, runtimetest.Succeed)
}

func (m *limitsModel) require(err error) {
	m.t.Helper()
	require.NoError(m.t, err, m)
}

func (m *limitsModel) that(is bool, format string, args ...any) {
	m.t.Helper()
	if !is {
		require.Fail(m.t, fmt.Sprintf(format, args...), m.String())
	}
}

// String returns the latest steps.
func (m *limitsModel) String() string {
	return "\n" + strings.Join(m.trace[max(len(m.trace)-25, 0):], "\n")
}

func (m *limitsModel) note(format string, args ...any) {
	m.trace = append(m.trace, fmt.Sprintf("%3d ", len(m.trace))+fmt.Sprintf(format, args...))
}

// look reads the tables.
func (m *limitsModel) look() *modelState {
	m.t.Helper()
	s := &modelState{
		rows: make(map[uuid.UUID]*modelRow), values: make(map[string]map[string]values), tags: make(map[string]string), live: make(map[modelKey]int),
	}
	rows, err := m.pool.Query(m.t.Context(), `
		SELECT topic, per, tag, coalesce(CASE WHEN set_until > statement_timestamp() THEN set_concurrency END, concurrency, 0),
			coalesce(CASE WHEN set_until > statement_timestamp() THEN set_rate END, rate, 0) FROM outbox.limits`)
	m.require(err)
	var topic, per, tag string
	var v values
	_, err = pgx.ForEachRow(rows, []any{&topic, &per, &tag, &v.concurrency, &v.rate}, func() error {
		if s.values[topic] == nil {
			s.values[topic] = make(map[string]values)
		}
		s.values[topic][per], s.tags[topic] = v, tag
		return nil
	})
	m.require(err)
	rows, err = m.pool.Query(m.t.Context(), `
		SELECT id, topic, coalesce(turn, ''), tenant_id, next_attempt_at, coalesce(locked_until, '0001-01-01 UTC'), locked_until IS NOT NULL, attempts, max_attempts,
			claim_no FROM outbox.queue`)
	m.require(err)
	all, err := pgx.CollectRows(rows, pgx.RowToAddrOfStructByPos[modelRow])
	m.require(err)
	for _, r := range all {
		s.rows[r.ID] = r
		if r.Leased {
			for _, k := range m.keysOf(r) {
				s.live[k]++
			}
		}
	}
	s.now = pgtest.Value[time.Time](m.t, m.pool, "SELECT clock_timestamp()")
	return s
}

func (m *limitsModel) keysOf(r *modelRow) (keys []modelKey) {
	for _, k := range m.referees[r.Topic].keysOf(r.Turn) {
		keys = append(keys, modelKey{r.Topic, k})
	}
	return keys
}

// covers reports whether a pause covers r.
func (m *limitsModel) covers(r *modelRow) bool {
	for s := range m.paused {
		if (s.Topic == "" || s.Topic == r.Topic) && (!s.TenantID.Valid || s.TenantID.UUID == r.Tenant) {
			return true
		}
	}
	return false
}

// A claim takes a few events whose lease ran out, of the first turns. Among more, those that may start can wait behind others.
const fewLate, freshTurns = 5, 32

// startable returns the events that a claim of topics must find: all that may start without doubt. A start counts for a
// sixteenth of the period more.
func (m *limitsModel) startable(s *modelState, topics []string) map[uuid.UUID]bool {
	found, full := make(map[uuid.UUID]bool), make(map[modelKey][2]bool)
	for k := range m.starts {
		v, used := s.values[k.topic][k.per], 0
		for _, at := range m.starts[k] {
			if at.to.Add(modelPeriod + modelPeriod/16).After(s.now.Add(m.shift)) {
				used++
			}
		}
		full[k] = [2]bool{false, v.rate > 0 && used >= v.rate}
	}
	for k, n := range s.live {
		v := s.values[k.topic][k.per]
		full[k] = [2]bool{v.concurrency > 0 && n >= v.concurrency, full[k][1]}
	}
	lates, turns := 0, make(map[string]bool)
	for _, r := range s.rows {
		turns[r.Topic+r.Turn] = true
		if r.Leased && r.Until.Before(s.now) {
			lates++
		}
	}
	for id, r := range s.rows {
		late := r.Leased && r.Until.Before(s.now)
		if late && (lates > fewLate || len(turns) > freshTurns) {
			continue
		}
		if !slices.Contains(topics, r.Topic) || m.covers(r) || r.Due.After(s.now) || r.Leased && !late || r.Attempts >= r.Max {
			continue
		}
		if tag := s.tags[r.Topic]; tag != "" && !strings.HasPrefix(r.Turn+"/", tag+"/") {
			continue // it was filed for other limits
		}
		found[id] = !slices.ContainsFunc(m.keysOf(r), func(k modelKey) bool { return full[k][1] || full[k][0] && !late })
	}
	maps.DeleteFunc(found, func(_ uuid.UUID, is bool) bool { return !is })
	return found
}

// leased compares the tables before and after claims, and returns what they have leased.
func (m *limitsModel) leased(before, after *modelState) (ids map[uuid.UUID]bool) {
	m.t.Helper()
	ids = make(map[uuid.UUID]bool)
	fresh := make(map[modelKey]int)
	for id, r := range after.rows {
		was := before.rows[id]
		if !r.Leased || was != nil && was.Claim == r.Claim {
			continue
		}
		ids[id] = true
		m.stats["leases"]++
		for _, k := range m.keysOf(r) {
			m.starts[k] = append(m.starts[k], modelStart{before.now.Add(m.shift), r.Until.Add(m.shift - modelLease)})
			fresh[k]++
		}
	}
	for k, n := range fresh {
		v := after.values[k.topic][k.per]
		m.that(v.concurrency == 0 || after.live[k] <= max(v.concurrency, before.live[k]), "%d leases of %v, %d before, and %d are allowed", after.live[k], k, before.live[k],
			v.concurrency)
		if v.rate == 0 {
			continue
		}
		all := m.starts[k]
		last, used := all[len(all)-1], 0
		for _, at := range all { // a handler may begin a 32nd of the period after the claim
			if last.to.Sub(at.from) < modelPeriod+modelPeriod/32 {
				used++
			}
		}
		m.that(used <= max(v.rate, n-1), "%d starts of %v, and %d are allowed", used, k, v.rate)
		m.stats["rated"]++
	}
	unknown := pgtest.Value[string](m.t, m.pool, `
		SELECT coalesce(string_agg(concat_ws(' ', q.topic, l.per, q.turn), ', '), '')
		FROM outbox.queue AS q JOIN outbox.limits AS l USING (namespace, topic)
		WHERE q.locked_until IS NOT NULL AND l.tag = split_part(q.turn, '/', 1) AND NOT EXISTS (
			SELECT FROM outbox.limit_usage AS u
			WHERE u.namespace = q.namespace AND u.topic = l.counted_as AND u.per = l.per
				AND u.key = CASE WHEN l.part > 0 THEN split_part(q.turn, '/', l.part + 1) ELSE '' END AND q.id = ANY (u.running))`)
	m.that(unknown == "", "leases are not noted: %s", unknown)
	return ids
}

// config returns what a worker claims.
func (m *limitsModel) config() queue.ClaimConfig {
	topics := []string{"all", "one", "wide", "fair", "plain"}
	if m.rnd.IntN(2) == 0 {
		m.rnd.Shuffle(len(topics), func(i, j int) { topics[i], topics[j] = topics[j], topics[i] })
		topics = topics[:1+m.rnd.IntN(len(topics))]
	}
	return queue.ClaimConfig{Topics: topics, BatchSize: []int{1, 3, 10, 40, 200}[m.rnd.IntN(5)], LeaseDuration: modelLease}
}

func (m *limitsModel) took(w int, claimed []queue.Claimed) (reclaimed bool) {
	m.held[w] = append(m.held[w], claimed...)
	return slices.ContainsFunc(claimed, func(c queue.Claimed) bool { return c.Reclaimed })
}

// claim claims without a cursor. If it finds less than it may, nothing is left that might start.
func (m *limitsModel) claim(w int) {
	cfg, before := m.config(), m.look()
	must := m.startable(before, cfg.Topics)
	claimed, err := m.stores[w].Claim(m.t.Context(), cfg)
	m.require(err)
	m.note("worker %d claims %d of %d of %v, %d might start", w, len(claimed), cfg.BatchSize, cfg.Topics, len(must))
	after := m.look()
	ids := m.leased(before, after)
	m.that(len(ids) == len(claimed), "%d leases begin, and the claim returns %d", len(ids), len(claimed))
	m.that(len(claimed) > 0 || len(must) == 0, "nothing is claimed, and %s might start", m.describe(before, must))
	if m.took(w, claimed) || len(claimed) == cfg.BatchSize {
		return
	}
	m.stats["complete claims"]++
	left := m.startable(after, cfg.Topics)
	maps.DeleteFunc(left, func(id uuid.UUID, _ bool) bool { return !must[id] })
	m.that(len(left) == 0, "%s might start, and the claim has left them", m.describe(after, left))
}

func (m *limitsModel) describe(s *modelState, ids map[uuid.UUID]bool) string {
	var all []string
	for id := range ids {
		r := s.rows[id]
		late := ""
		if r.Leased {
			late = ", whose lease ran out"
		}
		all = append(all, fmt.Sprintf("%s %s (attempt %d of %d, due since %s%s)", r.Topic, r.Turn, r.Attempts, r.Max, s.now.Sub(r.Due).Round(time.Second), late))
	}
	slices.Sort(all)
	return fmt.Sprint(len(all), " events, such as ", all[:min(len(all), 3)])
}

// walk takes a step of a walk with a cursor. At its end all has been claimed that might have started all the time.
func (m *limitsModel) walk(w int) {
	before, k := m.look(), m.walks[w]
	if k == nil {
		k = &modelWalk{cursor: new(queue.Cursor), cfg: m.config()}
		k.cfg.Cursor, k.owed = k.cursor, m.startable(before, k.cfg.Topics)
		m.walks[w] = k
	}
	claimed, err := m.stores[w].Claim(m.t.Context(), k.cfg)
	m.require(err)
	m.note("worker %d walks: %d of %d of %v, %d owed", w, len(claimed), k.cfg.BatchSize, k.cfg.Topics, len(k.owed))
	after := m.look()
	m.leased(before, after)
	m.took(w, claimed)
	m.owe(after)
	if k.cursor.Done() {
		m.stats["complete walks"]++
		m.that(len(k.owed) == 0, "the walk of %d of %v has ended, and %s might have started all the time", k.cfg.BatchSize, k.cfg.Topics, m.describe(after, k.owed))
		m.walks[w] = nil
	}
}

// owe forgets what a walk need not find any more.
func (m *limitsModel) owe(s *modelState) {
	for _, k := range m.walks {
		if k != nil {
			might := m.startable(s, k.cfg.Topics)
			maps.DeleteFunc(k.owed, func(id uuid.UUID, _ bool) bool { return !might[id] || s.rows[id].Leased })
		}
	}
}

// rush makes all workers claim at the same time.
func (m *limitsModel) rush() {
	before := m.look()
	all := make([][]queue.Claimed, modelWorkers)
	var done sync.WaitGroup
	for w := range modelWorkers {
		cfg := m.config()
		done.Go(func() {
			var err error
			all[w], err = m.stores[w].Claim(m.t.Context(), cfg)
			pgtest.Check(m.t, err)
		})
	}
	done.Wait()
	n := 0
	for w, claimed := range all {
		m.took(w, claimed)
		n += len(claimed)
	}
	m.note("all claim %d", n)
	m.that(len(m.leased(before, m.look())) == n, "a rush of %d", n)
}

// locked claims while another claim has some keys locked. It leaves their events, and finds them when the locks are gone.
func (m *limitsModel) locked(w int) {
	cfg, before := m.config(), m.look()
	tx := pgtest.Begin(m.t, m.pool, pgx.TxOptions{})
	rows, err := tx.Query(m.t.Context(), "SELECT topic, per, key FROM outbox.limit_usage ORDER BY md5(topic || per || key || $1) LIMIT 3 FOR NO KEY UPDATE", fmt.Sprint(m.rnd.Uint64()))
	m.require(err)
	locked := make(map[modelKey]bool)
	var k modelKey
	_, err = pgx.ForEachRow(rows, []any{&k.topic, &k.per, &k.key}, func() error {
		locked[k] = true
		return nil
	})
	m.require(err)
	owed := m.startable(before, cfg.Topics)
	cfg.Cursor, cfg.BatchSize = new(queue.Cursor), max(cfg.BatchSize, 10)
	claim := func() {
		was := m.look()
		claimed, err := m.stores[w].Claim(m.t.Context(), cfg)
		m.require(err)
		m.took(w, claimed)
		after := m.look()
		for id := range m.leased(was, after) {
			m.that(!slices.ContainsFunc(m.keysOf(after.rows[id]), func(k modelKey) bool { return locked[k] }), "an event of a locked key is claimed")
		}
		might := m.startable(after, cfg.Topics)
		maps.DeleteFunc(owed, func(id uuid.UUID, _ bool) bool { return !might[id] || was.rows[id].Leased }) // these are left to a round
	}
	for range 3 {
		claim()
	}
	m.note("worker %d claims %d of %v beside %d locked keys, %d owed", w, cfg.BatchSize, cfg.Topics, len(locked), len(owed))
	m.require(tx.Rollback(m.t.Context()))
	for clear(locked); !cfg.Cursor.Done(); {
		claim()
	}
	m.that(len(owed) == 0, "the walk beside locks has ended, and %s might have started all the time", m.describe(m.look(), owed))
}

// some takes up to n random events out of what a worker holds.
func (m *limitsModel) some(w, n int) []queue.Claimed {
	all := m.held[w]
	m.rnd.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	n = min(n, len(all))
	m.held[w] = all[n:]
	return all[:n]
}

// settle ends claims, or renews them. Those that were lost are not an error.
func (m *limitsModel) settle(w int) {
	events, ctx, s := m.some(w, 1+m.rnd.IntN(20)), m.t.Context(), m.stores[w]
	if len(events) == 0 {
		return
	}
	before := m.look()
	what := []string{"ack", "ack", "nack", "release", "extend", "forget"}[m.rnd.IntN(6)]
	var out []queue.Outcome
	switch what {
	case "ack":
		out, _ = s.Ack(ctx, events...)
	case "nack":
		var all []queue.Failure
		for _, e := range events {
			f := queue.Failure{Claimed: e, Err: outbox.Permanent(fmt.Errorf("never"))}
			if m.rnd.IntN(3) > 0 {
				f = queue.Failure{Claimed: e, Err: fmt.Errorf("again"), RetryAt: before.now.Add(time.Duration(m.rnd.IntN(4)) * 10 * time.Second)}
			}
			all = append(all, f)
		}
		out, _ = s.Nack(ctx, all...)
	case "release":
		out, _ = s.Release(ctx, events...)
	case "extend":
		out, _ = s.Extend(ctx, modelLease, events...)
		m.held[w] = append(m.held[w], events...)
	}
	m.that(what == "forget" || len(out) == len(events), "%s: %v", what, out)
	m.note("worker %d: %s of %d: %v", w, what, len(events), out)
}

// pass lets time pass: everything in the tables moves into the past. A walk knows places of before, so it ends.
func (m *limitsModel) pass() {
	d := time.Duration(1+m.rnd.IntN(3)) * []time.Duration{time.Second, 20 * time.Second, modelLease}[m.rnd.IntN(3)]
	for _, sql := range []string{
		"UPDATE outbox.queue SET next_attempt_at = next_attempt_at - $1::interval, locked_until = locked_until - $1::interval, updated_at = updated_at - $1::interval",
		`UPDATE outbox.limit_usage SET updated_at = updated_at - $1::interval, starts_at = array(
			SELECT s.at - $1::interval FROM unnest(starts_at) WITH ORDINALITY AS s (at, n) ORDER BY s.n)`,
		"UPDATE outbox.limits SET set_until = set_until - $1::interval",
	} {
		pgtest.Execute(m.t, m.pool, sql, d)
	}
	m.shift += d
	clear(m.walks)
	m.note("%s pass", d)
}

// enqueue enqueues for few or for many keys.
func (m *limitsModel) enqueue() {
	edition := m.rnd.IntN(len(m.editions))
	topics := modelTopics(edition)
	topic, keys := topics[m.rnd.IntN(len(topics))], []int{1, 4, 60}[m.rnd.IntN(3)]
	jobs := make([]runtimetest.Job, 1+m.rnd.IntN(40))
	for i := range jobs {
		m.n++
		field := m.rnd.IntN(keys)
		jobs[i] = runtimetest.Job{N: m.n, TenantID: uuid.UUID{byte(1 + field%5)}, Secret: fmt.Sprint("field ", field)}
	}
	runtimetest.EnqueueJobs(m.t, m.pool, topic, jobs...)
	m.note("%d events of %s of %d keys, edition %d", len(jobs), topic.Untyped().Spec().Name, keys, edition)
}

// operate does what operators and starts of processes do.
func (m *limitsModel) operate() {
	ctx, act := m.t.Context(), admin.Act{Who: "tester"}
	switch what := m.rnd.IntN(7); what {
	case 0, 1:
		spec := modelTopics(0)[m.rnd.IntN(3)].Untyped().Spec()
		l := spec.Limits[m.rnd.IntN(len(spec.Limits))]
		scope := admin.LimitScope{Namespace: "jobs", Topic: spec.Name, Per: l.Per}
		if what == 1 {
			_, err := m.admin.ResetLimit(ctx, scope, m.rnd.IntN(2) == 0, act)
			m.require(err)
			m.note("reset %s", scope)
			return
		}
		var v admin.LimitValue
		if l.Concurrency > 0 {
			v.Concurrency = 1 + m.rnd.IntN(2*l.Concurrency)
		}
		if l.Rate.Events > 0 {
			v.Rate = outbox.Rate{Events: 1 + m.rnd.IntN(2*l.Rate.Events), Period: modelPeriod}
		}
		if m.rnd.IntN(2) == 0 {
			act.Until = time.Now().Add(time.Duration(10+m.rnd.IntN(100)) * time.Second)
		}
		_, err := m.admin.SetLimit(ctx, scope, v, act)
		m.require(err)
		m.note("set %s: %s", scope, v)
	case 2:
		s := admin.Scope{Namespace: "jobs"}
		if m.rnd.IntN(3) > 0 {
			s.Topic = modelTopics(0)[m.rnd.IntN(5)].Untyped().Spec().Name
		}
		if s.Topic == "" || m.rnd.IntN(2) == 0 {
			s.TenantID = uuid.NullUUID{UUID: uuid.UUID{byte(1 + m.rnd.IntN(5))}, Valid: true}
		}
		if len(m.paused) > 2 {
			return
		}
		m.require(m.admin.Pause(ctx, s, act))
		m.paused[s] = true
		m.note("pause %v", s)
	case 3:
		for s := range m.paused {
			_, err := m.admin.Resume(ctx, s, act)
			m.require(err)
		}
		clear(m.paused)
		m.note("resume")
	case 4:
		r, err := m.admin.Replay(ctx, admin.Filter{Namespace: "jobs"}, act)
		m.require(err)
		m.note("replay: %+v", r)
	case 5:
		m.edition = 1 - m.edition
		m.require(queue.Declare(ctx, m.editions[m.edition]))
		m.note("edition %d", m.edition)
	case 6:
		n, err := m.stores[0].SweepDead(ctx)
		m.require(err)
		m.require(queue.PruneUsage(ctx, m.editions[m.edition]))
		m.note("sweep %d, and prune", n)
	}
}

// file gives events the turns of the edition that is in force.
func (m *limitsModel) file() {
	m.require(queue.File(m.t.Context(), m.editions[m.edition]))
	m.note("file")
}

// play plays a schedule.
func (m *limitsModel) play() {
	for _, topic := range modelTopics(0) { // a topic is known when it has had events
		m.n++
		runtimetest.EnqueueJobs(m.t, m.pool, topic, runtimetest.Job{N: m.n, TenantID: uuid.UUID{1}, Secret: "first"})
	}
	for range modelSteps {
		w := m.rnd.IntN(modelWorkers)
		switch n := m.rnd.IntN(100); {
		case n < 12:
			m.enqueue()
		case n < 27:
			m.claim(w)
		case n < 45:
			m.walk(w)
		case n < 49:
			m.rush()
		case n < 52:
			m.locked(w)
		case n < 74:
			m.settle(w)
		case n < 84:
			m.pass()
		case n < 94:
			m.operate()
		default:
			m.file()
		}
		m.owe(m.look())
	}
}

// TestLimitsAgainstAModel plays random schedules of claims, walks, results, leases that run out, replays, pauses, values that
// are set, editions and time that passes on the real statements. After each step it compares the tables with a model: no key has more leases than its
// limit, none has more starts in a window than its rate, every lease is noted, and a claim that ends has left nothing that might start.
// OUTBOXGEN_LIMITS_SEEDS says how many schedules it plays, and OUTBOXGEN_LIMITS_SEED plays one.
func TestLimitsAgainstAModel(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	first, n := uint64(1), 2
	if text := os.Getenv("OUTBOXGEN_LIMITS_SEED"); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
		first, n = seed, 1
	} else if text := os.Getenv("OUTBOXGEN_LIMITS_SEEDS"); text != "" {
		var err error
		n, err = strconv.Atoi(text)
		require.NoError(t, err)
		first = uint64(time.Now().UnixNano())
	}
	for i := range n {
		seed := first + uint64(i)
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			m := newLimitsModel(t, seed)
			m.play()
			t.Logf("OUTBOXGEN_LIMITS_SEED=%d: %v", seed, m.stats)
		})
	}
}
