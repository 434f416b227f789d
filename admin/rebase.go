package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/internal/call/backoff"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
)

// RebaseReport says what Rebase found and did.
type RebaseReport struct {
	// Needed is whether there was anything to do. It is false if the cursors were made in this database and its
	// sequence is ahead of them.
	Needed bool `json:"needed"`
	// Listeners are the listeners whose cursors were rebased: all attached ones.
	Listeners []string `json:"listeners"`
	// Events is how many events the log holds. Behind is how many of them some cursor had passed without delivering
	// them, because they committed late.
	Events int64 `json:"events"`
	Behind int64 `json:"behind"`
}

// LeaseHeldError says that a process runs a listener.
type LeaseHeldError struct {
	Listener string
	Worker   uuid.UUID
	Until    time.Time // by the database's clock, unless the worker renews its lease
}

// Error names the listener, its holder and the end of the lease.
func (e *LeaseHeldError) Error() string {
	return fmt.Sprintf("listener %s is held by worker %s until %s: stop it first", e.Listener, e.Worker,
		e.Until.UTC().Format(time.RFC3339))
}

// Rebase converts the cursors of a restored database, which Run refuses with ErrRestored, to the cluster that the
// database is in now. It also advances a sequence that is behind the log or a cursor, which Run refuses with
// ErrSequence. Afterwards each listener handles exactly what it had not handled when the dump was taken, and what has
// been enqueued since. Failed attempts are not counted any more. No listener may run meanwhile; enqueueing may
// continue.
//
// It is one transaction, which rewrites the xid of every event of the log. If it fails or is killed, nothing has
// changed.
func (a *Admin) Rebase(ctx context.Context) (RebaseReport, error) {
	const what = "rebase listeners"
	var r RebaseReport
	act, err := a.actor(what)
	if err != nil {
		return r, err
	}
	needed, err := a.needed(ctx)
	if err != nil || !needed {
		return r, a.db.Wrap(what, err)
	}
	var trouble backoff.Retrier
	for tries := 1; ; tries++ {
		r = RebaseReport{Needed: true}
		err := pgx.BeginTxFunc(ctx, a.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, func(tx pgx.Tx) error {
			q := a.db.On(tx)
			if err := q.SessionPath(ctx); err != nil {
				return err
			}
			if err := a.rebase(ctx, q, &r); err != nil {
				return err
			}
			return act.audit(ctx, q, "rebase", auditScope{Listeners: r.Listeners}, r.Events)
		})
		switch {
		case err == nil, errors.Is(err, errPreview):
			a.wakeListeners(ctx)
			return r, nil
		case tries > adminTries, !errors.Is(err, errLocked) && !collided(err):
			return RebaseReport{Needed: true}, a.db.Wrap(what, err)
		}
		backoff.Sleep(ctx, trouble.Next())
		if ctx.Err() != nil {
			return RebaseReport{Needed: true}, a.db.Wrap(what, ctx.Err())
		}
	}
}

// needed reports whether there is anything to do. It advances a sequence that is behind. This happens before the
// transaction that converts the cursors: an event that had drawn a number behind a cursor until then has an xid below
// the bounds of the new cursors, so a cursor either sees it or treats it as a straggler.
func (a *Admin) needed(ctx context.Context) (bool, error) {
	q := a.db.Each(a.pool)
	needed, err := q.RebaseNeeded(ctx)
	if err != nil {
		return false, err
	}
	behind, reached, err := a.db.CheckSequence(ctx, q)
	switch {
	case behind && a.preview:
		return true, nil
	case behind:
		return true, q.RebaseSequence(ctx, reached)
	}
	return needed, err
}

// errLocked: another process prunes, or moves a cursor.
var errLocked = errors.New("the cursors of the schema are locked")

// The xids of events in a rebased log. They are below every xid that a transaction of any cluster ever has for an
// event. So they count as ended in every snapshot, except in those of cursors that list them.
const (
	xidOfAll    = 3 // delivered to every listener, or above its position
	firstOfMark = 4 // of events behind some cursor, one per set of such cursors
)

// rebaseChunk is how many positions of the log a statement rewrites.
const rebaseChunk = 10_000

// rebase runs in one transaction at REPEATABLE READ, so that one snapshot covers what was delivered, the log, and the
// new cursors.
//
// An event that a cursor had passed without delivering it is a straggler: its transaction was not finished in lo. The
// rebase keeps this property. Such events get an xid that stands for the set of cursors that have yet to deliver them,
// and these cursors list the xid in their new lo as not finished. So the events are stragglers of the next window, in
// the order of the log, and topics filter them and prune counts them like any other.
func (a *Admin) rebase(ctx context.Context, q *queries.Queries, r *RebaseReport) error {
	if err := q.RebaseLock(ctx); err != nil {
		return err
	}
	start, err := q.RebaseStart(ctx, a.db.CursorLock())
	if err != nil {
		return err
	}
	if !start.Locked {
		return errLocked
	}
	cursors, err := q.RebaseCursors(ctx)
	if err != nil {
		return err
	}
	for _, c := range cursors {
		if c.Live {
			return &LeaseHeldError{Listener: c.Listener, Worker: c.LeaseBy.Bytes, Until: c.LeaseUntil.Time.UTC()}
		}
		if !slices.Contains(r.Listeners, c.Listener) {
			r.Listeners = append(r.Listeners, c.Listener)
		}
	}
	missed, err := q.RebaseMissed(ctx)
	if err != nil {
		return err
	}
	r.Events, r.Behind = start.Events, int64(len(missed))
	if a.preview {
		return errPreview
	}
	snapshot, err := parseSnapshot(start.Snapshot)
	if err != nil {
		return err
	}
	m := markMissed(missed, snapshot.xmin-firstOfMark)
	least := start.LastSeq
	for i, c := range cursors {
		least = max(least, c.HighSeq)
		err := q.RebaseCursor(ctx, queries.RebaseCursorParams{
			Lo: snapshot.without(m.of[int32(i)]), HighSeq: c.HighSeq, Listener: c.Listener, Shard: c.Shard,
		})
		if err != nil {
			return err
		}
	}
	if err := a.rewrite(ctx, q, snapshot.xmin, m.last, start.Events); err != nil {
		return err
	}
	if err := q.RebaseMark(ctx, queries.RebaseMarkParams{Seqs: m.seqs, Xids: m.xids}); err != nil {
		return err
	}
	return q.RebaseSequence(ctx, least)
}

// rewrite gives an xid that is visible everywhere to the events whose xid is not below xmin, and to those that an
// earlier rebase has marked with an xid up to last.
func (a *Admin) rewrite(ctx context.Context, q *queries.Queries, xmin, last, total int64) error {
	p := queries.RebaseRewriteParams{
		ScanSize: rebaseChunk, First: strconv.FormatInt(xmin, 10), Last: strconv.FormatInt(last, 10),
	}
	for done := int64(0); ; {
		row, err := q.RebaseRewrite(ctx, p)
		if err != nil {
			return err
		}
		done += row.Scanned
		a.progress(done, total)
		if row.Scanned < rebaseChunk {
			return nil
		}
		p.AfterSeq = row.LastSeq
	}
}

// marking holds the xids that mark the events which cursors have missed.
type marking struct {
	seqs, xids []int64
	last       int64             // the highest
	of         map[int32][]int64 // by the place of a cursor, in ascending order
}

// markMissed takes one xid per set of cursors that have missed the same events. room is the number of available xids,
// which is hundreds in a new cluster. If there are more sets, the remaining ones share the last xid: their cursors get
// each other's events again, and lose none.
func markMissed(missed []queries.RebaseMissedRow, room int64) marking {
	m := marking{last: xidOfAll, of: make(map[int32][]int64)}
	known := make(map[string]int64)
	for _, row := range missed {
		set := fmt.Sprint(row.Places)
		xid, found := known[set]
		if !found {
			m.last = min(m.last+1, xidOfAll+room)
			xid = m.last
			known[set] = xid
			for _, place := range row.Places {
				if !slices.Contains(m.of[place], xid) {
					m.of[place] = append(m.of[place], xid)
				}
			}
		}
		m.seqs, m.xids = append(m.seqs, row.Seq), append(m.xids, xid)
	}
	return m
}

// snapshot is a pg_snapshot.
type snapshot struct {
	xmin, xmax int64
	xips       string // in PostgreSQL's text form
}

func parseSnapshot(text string) (s snapshot, err error) {
	parts := strings.Split(text, ":")
	if len(parts) != 3 {
		return s, fmt.Errorf("snapshot %q is not one of three parts", text)
	}
	s.xips = parts[2]
	if s.xmin, err = strconv.ParseInt(parts[0], 10, 64); err != nil {
		return s, err
	}
	s.xmax, err = strconv.ParseInt(parts[1], 10, 64)
	return s, err
}

// without returns the text of s with the transactions xids as not finished. xids are in ascending order and all below
// xmin.
func (s snapshot) without(xids []int64) string {
	xmin, list := s.xmin, make([]string, 0, len(xids)+1)
	for i, xid := range xids {
		if i == 0 {
			xmin = xid
		}
		list = append(list, strconv.FormatInt(xid, 10))
	}
	if s.xips != "" {
		list = append(list, s.xips)
	}
	return fmt.Sprintf("%d:%d:%s", xmin, s.xmax, strings.Join(list, ","))
}
