package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/internal/testing/statements"
)

const (
	casesDir   = "internal/testing/statements/testdata"
	queriesDir = "internal/postgres/queries"
)

// search looks for cases that tell the mutants of each chosen unit from it, and adds them to casesDir.
func search(ctx context.Context, o options, units []unit, mutants []mutant, explained map[string]string) error {
	only, err := regexp.Compile(o.only)
	if err != nil {
		return err
	}
	server, err := startServer(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = server.Stop() }()
	conn, err := pgx.Connect(ctx, server.URLOf(server.in))
	if err != nil {
		return err
	}
	locker, err := pgx.Connect(ctx, server.URLOf(server.in))
	if err != nil {
		return err
	}
	b, err := openBench(ctx, server, conn, "outbox")
	if err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, "SET statement_timeout = '6s'"); err != nil {
		return err
	}
	known, err := allStatements(ctx, server, b)
	if err != nil {
		return err
	}
	for _, u := range units {
		var own []mutant
		part := false
		for _, m := range mutants {
			switch {
			case m.unit != u.name:
			case only.MatchString(m.id):
				own = append(own, m)
			default:
				part = true
			}
		}
		s, ok := known[u.name]
		if len(own) == 0 || !ok || ctx.Err() != nil {
			continue
		}
		h := &hunt{explained: explained, server: server, dir: casesDir, conn: conn, locker: locker, bench: b, statement: s, part: part, r: rand.New(rand.NewPCG(o.seed, uint64(len(u.name))))}
		if err := h.run(ctx, own, o.search); err != nil {
			fmt.Printf("%s: %v\n", u.name, err)
			if end := b.End(ctx); end != nil {
				return end
			}
		}
	}
	return ctx.Err()
}

// openBench opens a bench for a schema of the server's database, with the settings of the runtime's transactions.
func openBench(ctx context.Context, server *server, conn *pgx.Conn, schema string) (*statements.Bench, error) {
	server.mu.Lock()
	defer server.mu.Unlock()
	if server.open == "" {
		other, err := pgx.Connect(ctx, server.URLOf(server.in))
		if err != nil {
			return nil, err
		}
		if server.open, err = statements.Hold(ctx, other); err != nil {
			return nil, err
		}
		server.other = other
	}
	queries, err := statements.Queries(filepath.Join(server.root, queriesDir))
	if err != nil {
		return nil, err
	}
	guard := queries[slices.IndexFunc(queries, func(s statements.Statement) bool { return s.Unit == "SessionGuard" })].Text
	return statements.Open(ctx, conn, server.open, schema, guard)
}

// allStatements returns what cases execute, by unit.
func allStatements(ctx context.Context, server *server, b *statements.Bench) (map[string]statements.Statement, error) {
	queries, err := statements.Queries(filepath.Join(server.root, queriesDir))
	if err != nil {
		return nil, err
	}
	functions, err := b.Functions(ctx)
	if err != nil {
		return nil, err
	}
	all := map[string]statements.Statement{}
	for _, s := range append(queries, functions...) {
		all[s.Unit] = s
	}
	for _, s := range b.Inserts() {
		all[s.Unit] = s
	}
	return all, nil
}

// subject is a statement, or a mutant of it.
type subject struct {
	mutant mutant
	bench  *statements.Bench
	p      *statements.Prepared
}

// hunt is the search for the cases of one statement.
type hunt struct {
	dir       string // where the cases are written
	explained map[string]string
	budget    time.Duration
	server    *server
	conn      *pgx.Conn
	bench     *statements.Bench
	statement statements.Statement
	r         *rand.Rand
	worlds    *worlds

	original  subject
	all       []subject
	live      []subject
	endless   map[string]int    // the mutants that do not end, with the number of the case that has shown it
	set       *statements.Bench // that has the rows of the current case
	cases     []statements.Case
	corpus    []statements.Case
	rich      []statements.Case // of corpus, those in which the statement returns or changes something
	contended []statements.Case // with rows that another session has locked
	locker    *pgx.Conn
	shapes    map[string]bool
	byHand    bool // whether the case that is tried was written by hand
	part      bool // whether the search is for some mutants of the statement only
	tried     int
	valid     int
}

func (h *hunt) run(ctx context.Context, mutants []mutant, budget time.Duration) error {
	refused, err := h.prepare(ctx, mutants)
	if err != nil {
		return err
	}
	start := time.Now()
	defer h.forget(ctx)
	if err := h.bench.Begin(ctx); err != nil {
		return err
	}
	old, err := statements.ReadCases(filepath.Join(h.server.root, casesDir), h.statement.Unit)
	if err != nil {
		return err
	}
	h.live, h.shapes, h.endless = slices.Clone(h.all), map[string]bool{}, map[string]int{}
	h.live = slices.DeleteFunc(h.live, func(m subject) bool { return h.explained[m.mutant.id] != "" })
	for _, c := range old {
		if c.Contended() {
			h.contended = append(h.contended, c)
			continue
		}
		want, ok, err := h.original.do(ctx, h, c, true)
		if err != nil {
			return err
		}
		if h.byHand = c.Want == ""; h.byHand {
			if err := h.try(ctx, c, true); err != nil {
				return err
			}
			continue
		}
		if !ok || want != c.Want {
			fmt.Printf("%s: a case has another result now, and is left out\n%s", h.statement.Unit, statements.Format([]statements.Case{c}))
			continue
		}
		if err := h.try(ctx, c, false); err != nil {
			return err
		}
	}
	h.byHand = false
	budget = max(budget, budget*time.Duration(len(h.all))/30)
	h.budget = budget
	unindexed := h.statement.Table == "" // after the rest of the budget
	for len(h.live) > 0 && ctx.Err() == nil {
		if over := time.Since(start) >= budget; over && (!unindexed || !h.ordered()) {
			break
		} else if over {
			unindexed, h.worlds.unindexed, budget = false, true, budget+budget/2
		}
		var c statements.Case
		if len(h.corpus) > 0 && h.worlds.chance(0.75) {
			from := h.corpus
			if len(h.rich) > 0 && h.worlds.chance(0.8) {
				from = h.rich
			}
			k := len(from) - 1 - int(float64(len(from))*h.r.Float64()*h.r.Float64())
			c = h.worlds.mutate(from[max(k, 0)])
		} else {
			c = h.worlds.fresh()
		}
		c.Unindexed = h.worlds.unindexed
		if err := h.try(ctx, c, true); err != nil {
			return err
		}
	}
	kept, err := h.fewest(ctx)
	if err != nil {
		return err
	}
	if err := h.bench.End(ctx); err != nil {
		return err
	}
	contended, err := h.contend(ctx)
	if err != nil {
		return err
	}
	kept = append(kept, contended...)
	if h.part {
		kept = merged(slices.DeleteFunc(old, func(c statements.Case) bool { return c.Want == "" }), kept)
	}
	fmt.Printf("%s: mutants=%d refused=%d left=%d cases=%d tried=%d valid=%d in %s\n", h.statement.Unit, len(h.all), refused,
		len(h.live), len(kept), h.tried, h.valid, time.Since(start).Round(time.Second))
	for _, m := range h.live {
		fmt.Printf("    left: %s\n", m.mutant.id)
	}
	return statements.WriteCases(h.dir, h.statement.Unit, kept)
}

// ordered reports whether a mutant lives that changes an order, which may show only where no index has the rows in it.
func (h *hunt) ordered() bool {
	return slices.ContainsFunc(h.live, func(m subject) bool { return orderMutant.MatchString(m.mutant.id) })
}

var orderMutant = regexp.MustCompile(`\[(DESC|, [^\]]*)? -> (DESC)?\]`)

// prepare parses the statement and its mutants.
func (h *hunt) prepare(ctx context.Context, mutants []mutant) (refused int, err error) {
	s := h.statement
	text := strings.ReplaceAll(s.Text, statements.Marker, "outbox")
	p, err := h.bench.Prepare(ctx, s, text, nil)
	if err != nil {
		return 0, err
	}
	h.original = subject{bench: h.bench, p: p}
	for _, m := range mutants {
		one := subject{mutant: m, bench: h.bench}
		switch {
		case m.file == "":
			one.p, err = h.bench.Prepare(ctx, s, strings.ReplaceAll(m.text, statements.Marker, "outbox"), p)
		case s.Table != "":
			name := h.server.name()
			if _, err = h.conn.Exec(ctx, script(m, name)); err == nil {
				if one.bench, err = openBench(ctx, h.server, h.conn, name); err == nil {
					one.p, err = one.bench.Prepare(ctx, s, "", nil)
				}
			}
		default:
			name := h.server.name()
			object := strings.Replace(m.object, statements.Marker, name, 1)
			if _, err = h.conn.Exec(ctx, "CREATE SCHEMA "+name+";"+strings.ReplaceAll(object, statements.Marker, "outbox")); err == nil {
				one.p, err = h.bench.Prepare(ctx, s, strings.Replace(text, "outbox.", name+".", 1), p)
			}
		}
		if err != nil {
			if errors.Is(ctx.Err(), context.Canceled) {
				return 0, err
			}
			refused++
			continue
		}
		h.all = append(h.all, one)
	}
	if _, err := h.conn.Exec(ctx, "SET statement_timeout = '6s'"); err != nil {
		return 0, err
	}
	h.worlds = &worlds{r: h.r, params: s.Params, arrays: map[string]bool{}, types: map[string]uint32{}}
	for i, oid := range p.Types() {
		if i < len(s.Params) {
			h.worlds.arrays[s.Params[i]], h.worlds.types[s.Params[i]] = statements.IsArray(oid), oid
		}
	}
	h.worlds.v7 = strings.Contains(text, "to_hex")
	h.worlds.plain = strings.HasPrefix(s.Unit, "Event") || strings.HasPrefix(s.Unit, "Limit")
	h.worlds.tables, h.worlds.sequence = h.bench.Uses(text), strings.Contains(text, "log_seq")
	if s.Table != "" {
		h.worlds.insert = h.bench.Tables()[s.Table]
		h.worlds.tables = []*statements.Table{h.worlds.insert}
	}
	return refused, nil
}

func (h *hunt) forget(ctx context.Context) {
	for _, one := range append(h.all, h.original) {
		_ = one.bench.Forget(ctx, one.p) // only memory of the session
	}
}

// do executes a case, on rows that are inserted for it if fresh says so. It reports false if the rows are refused.
func (s subject) do(ctx context.Context, h *hunt, c statements.Case, fresh bool) (string, bool, error) {
	if fresh || h.set != s.bench || s.bench.Age() > 10*time.Second {
		if err := s.bench.Set(ctx, c); err != nil {
			if h.conn.IsClosed() || ctx.Err() != nil {
				return "", false, err
			}
			h.set = nil
			return "", false, nil
		}
		h.set = s.bench
	}
	r, err := s.bench.Run(ctx, s.p, c)
	if strings.HasPrefix(r.Err, "57014") && s.mutant.id != "" {
		h.endless[s.mutant.id] = len(h.cases)
	}
	if statements.Lost(err) {
		fmt.Println(h.statement.Unit, err)
		h.set = nil
		if err := s.bench.End(ctx); err != nil {
			return "", false, err
		}
		return "", false, s.bench.Begin(ctx)
	}
	if err != nil {
		return "", false, err
	}
	return r.String(), true, nil
}

var meaningless = regexp.MustCompile(`^error (22P02|22003|22008|22012|22023 cannot|42|21000|57014|23502|2202E|22000|22004|P0002)`)

// try executes a case on the statement and on the mutants that live. A new case is kept, smaller, if it tells some apart.
func (h *hunt) try(ctx context.Context, c statements.Case, isNew bool) error {
	h.tried++
	want, ok, err := h.original.do(ctx, h, c, true)
	if err != nil || !ok || meaningless.MatchString(want) {
		return err
	}
	h.valid++
	c.Want = want
	shape := shapeOf(want)
	known := h.shapes[shape]
	if !known && len(h.shapes) < 3000 {
		h.shapes[shape] = true
		h.corpus = append(h.corpus, c)
		if interesting.MatchString(want) {
			h.rich = append(h.rich, c)
		}
	}
	of := h.live
	if known && isNew && !h.byHand && len(of) > 20 { // a result of a kind that is known seldom tells much
		of = nil
		for _, k := range h.r.Perm(len(h.live))[:len(h.live)/4] {
			of = append(of, h.live[k])
		}
	}
	found, err := h.told(ctx, len(h.cases), c, of)
	if err == nil && len(found) > 0 && len(of) < len(h.live) {
		found, err = h.told(ctx, len(h.cases), c, h.live)
	}
	if err != nil || len(found) == 0 {
		return err
	}
	if isNew {
		if ok, err := h.stable(ctx, c, want); err != nil || !ok {
			return err
		}
		if c, err = h.shrink(ctx, c, found); err != nil {
			return err
		}
		if found, err = h.told(ctx, len(h.cases), c, h.live); err != nil || len(found) == 0 {
			return err
		}
	}
	h.cases, h.corpus = append(h.cases, c), append(h.corpus, c)
	h.live = slices.DeleteFunc(h.live, func(m subject) bool { return slices.Contains(found, m.mutant.id) })
	return nil
}

var (
	interesting = regexp.MustCompile(`(?m)^(updates|inserts|deletes|locks)|\bid=#|\A(returned .*\n){2}`)
	numbers     = regexp.MustCompile(`[0-9]+`)
)

// shapeOf is what a result looks like, without its numbers.
func shapeOf(want string) string { return numbers.ReplaceAllString(want, "0") }

// told returns the ids of the mutants that do something else with a case of this number, whose rows are there.
func (h *hunt) told(ctx context.Context, number int, c statements.Case, of []subject) ([]string, error) {
	var ids []string
	var run []subject
	for _, m := range of {
		switch shown, endless := h.endless[m.mutant.id]; {
		case endless && shown == number:
			ids = append(ids, m.mutant.id)
		case !endless:
			run = append(run, m)
		}
	}
	for part := range slices.Chunk(run, 25) {
		results, err := h.all25(ctx, part, c)
		if err != nil {
			return nil, err
		}
		for i, got := range results {
			if got != "" && got != c.Want {
				ids = append(ids, part[i].mutant.id)
			}
		}
	}
	return ids, nil
}

// all25 executes a case on several mutants. A result that is empty says nothing.
func (h *hunt) all25(ctx context.Context, part []subject, c statements.Case) ([]string, error) {
	found := make([]string, len(part))
	if h.statement.Table == "" && h.set == h.bench && h.bench.Age() < 10*time.Second {
		var prepared []*statements.Prepared
		for _, m := range part {
			prepared = append(prepared, m.p)
		}
		results, err := h.bench.RunAll(ctx, prepared, c)
		if err == nil {
			for i, r := range results {
				if found[i] = r.String(); strings.HasPrefix(r.Err, "57014") {
					h.endless[part[i].mutant.id] = len(h.cases)
				}
			}
			return found, nil
		}
		if h.conn.IsClosed() {
			return nil, err
		}
	}
	for i, m := range part {
		got, ok, err := m.do(ctx, h, c, false)
		if err != nil {
			return nil, err
		}
		if ok {
			found[i] = got
		}
	}
	return found, nil
}
