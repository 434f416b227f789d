package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/outboxgen/outboxgen/internal/postgres/pgvalue"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
)

const (
	// headSize is how many due rows of each lane are read.
	headSize = 1000
	// longDue is how long an event may be due, or its lease be over. It is longer than a drain by cron waits.
	longDue = 10 * time.Minute
	// aliveFor is how long after it was seen a process counts as alive: three renewals.
	aliveFor = 90 * time.Second
)

// queueHeads reads what DoctorQueue does, without what waits at limits.
func (e *examination) queueHeads(ctx context.Context) (rows []queries.DoctorQueueRow, err error) {
	err = e.read(ctx, func(ctx context.Context, _ pgx.Tx, q *queries.Queries) error {
		if err := q.SessionGuard(ctx); err != nil {
			return err
		}
		waits, err := limitWaits(ctx, q, headSize, true)
		if err != nil {
			return err
		}
		p := queries.DoctorQueueParams{HeadSize: headSize, Held: []string{}}
		for _, w := range waits {
			for _, turn := range w.turns {
				p.Held = append(p.Held, w.Namespace+" "+turn)
			}
		}
		rows, err = q.DoctorQueue(ctx, p)
		return err
	})
	return rows, err
}

// checkQueue: events are claimed soon after they are due, and those of a process that died are claimed again.
func checkQueue(ctx context.Context, e *examination) (found []Finding, err error) {
	rows, err := e.queueHeads(ctx)
	for _, r := range rows {
		if late := microseconds(r.ClaimableUs); r.Claimable > 0 && late >= longDue {
			found = append(found, Finding{
				Severity: SeverityWarning,
				Text: fmt.Sprintf("%s of %s/%s, version %d, are due and not claimed, the oldest since %s", atLeast(r.Claimable),
					r.Namespace, r.Topic, r.Version, age(late)),
				Means: "no process takes them, the topic or its destination rests, or handlers are too slow for the backlog",
				Fix:   e.command("status") + "; then start a dispatcher, fix the destination, or raise Concurrency",
			})
		}
		if late := microseconds(r.ExpiredUs); r.Expired > 0 && late >= longDue {
			found = append(found, Finding{
				Severity: SeverityWarning,
				Text: fmt.Sprintf("%s of %s/%s, version %d, have a lease that has run out, the oldest %s ago",
					atLeast(r.Expired), r.Namespace, r.Topic, r.Version, age(late)),
				Means: "the process that had claimed them died, and no other claims them again",
				Fix:   e.command("status") + "; then start a dispatcher of namespace " + r.Namespace,
			})
		}
	}
	return found, err
}

// atLeast is a count that stops at headSize in each lane.
func atLeast(n int64) string {
	switch {
	case n == 1:
		return "1 event"
	case n >= headSize:
		return fmt.Sprintf("%d or more events", n)
	}
	return fmt.Sprintf("%d events", n)
}

// runner is a running process.
type runner struct {
	kind, name string
	versions   map[string]int // that it knows, by "namespace/topic"; nil if it cannot be read
}

// runners returns the processes that are alive.
func runners(rows []queries.DoctorProcessesRow) (alive []runner) {
	for _, r := range rows {
		if microseconds(r.AgeUs) > aliveFor {
			continue
		}
		alive = append(alive, runner{r.Kind, r.Name, versionsOf(r.Topics)})
	}
	return alive
}

// versionsOf reads the column topics of processes. A number stands for an object that only has the version.
func versionsOf(text json.RawMessage) map[string]int {
	var topics map[string]json.RawMessage
	if json.Unmarshal(text, &topics) != nil {
		return nil
	}
	versions := make(map[string]int, len(topics))
	for topic, value := range topics {
		var known struct{ Version int }
		if json.Unmarshal(value, &known.Version) != nil {
			_ = json.Unmarshal(value, &known) // then 0, which is every version
		}
		versions[topic] = known.Version
	}
	return versions
}

// handles reports whether r takes events of the topic, and of the version.
func (r runner) handles(topic string, version int) (takes, decodes bool) {
	if r.versions == nil {
		return true, true
	}
	known, takes := r.versions[topic]
	return takes, takes && (known == 0 || version <= known)
}

// checkHandlers: some running process handles each topic that has due events, and knows their version.
func checkHandlers(ctx context.Context, e *examination) (found []Finding, err error) {
	heads, err := e.queueHeads(ctx)
	if err != nil {
		return nil, err
	}
	var rows []queries.DoctorProcessesRow
	err = e.read(ctx, func(ctx context.Context, _ pgx.Tx, q *queries.Queries) error {
		rows, err = q.DoctorProcesses(ctx, pgvalue.Interval(e.goneAfter))
		return err
	})
	if err != nil {
		return nil, err
	}
	alive := runners(rows)
	for _, h := range heads {
		if h.Claimable == 0 || microseconds(h.ClaimableUs) < longDue {
			continue // a drain by cron may come
		}
		topic, takes, decodes := h.Namespace+"/"+h.Topic, false, false
		for _, r := range alive {
			if r.kind == "dispatcher" && r.name == h.Namespace {
				t, d := r.handles(topic, int(h.Version))
				takes, decodes = takes || t, decodes || d
			}
		}
		f := Finding{Severity: SeverityWarning, Means: "its events wait for a process that handles them"}
		switch {
		case !takes:
			f.Text = fmt.Sprintf("no running process handles topic %s, which has due events", topic)
			f.Fix = "start a dispatcher of namespace " + h.Namespace +
				" that has a handler for it; if it is drained by cron, look whether that runs"
		case !decodes:
			f.Text = fmt.Sprintf("no running process knows version %d of topic %s, which has due events of it", h.Version, topic)
			f.Fix = "deploy the dispatcher that was generated with this version"
		default:
			continue
		}
		found = append(found, f)
	}
	more, err := e.idleListeners(ctx, alive)
	return append(found, more...), err
}

// idleListeners are those that have something to read and that no running process runs.
func (e *examination) idleListeners(ctx context.Context, alive []runner) (found []Finding, err error) {
	list, err := e.shards(ctx)
	runs := make(map[string]bool)
	for _, r := range alive {
		if r.kind == "listener" {
			runs[r.name] = true
		}
	}
	for _, s := range SumShards(list) {
		for _, p := range s.PassedTopics() {
			if p.By.SeenAt.Sub(p.By.StartedAt) < longDue || p.ReadBy.SeenAt.Sub(p.ReadBy.StartedAt) < longDue {
				continue // a deployment is under way
			}
			found = append(found, Finding{
				Severity: SeverityWarning,
				Text: fmt.Sprintf("a process of listener %s (host %s, pid %d) passes the events of topic %s, which another one "+
					"(host %s, pid %d) reads",
					s.Listener, brief(p.By.Host), p.By.PID, p.Topic, brief(p.ReadBy.Host), p.ReadBy.PID),
				Means: "events of the topic are never handled: two services use this name for their listeners, or an old build " +
					"still runs",
				Fix: "rename one of the listeners, or stop the old process; then " +
					e.command("listener rewind "+s.Listener+" --to TIME") + ", with the time when both began to run",
			})
		}
	}
	unknown := make(map[string]bool)
	for _, s := range list {
		for _, v := range s.UnhandledVersions {
			text := fmt.Sprintf("no running process of listener %s knows version %d of topic %s, at which it has stopped",
				s.Listener, v.Version, v.Topic)
			if !unknown[text] && s.Lag >= longDue {
				found = append(found, Finding{
					Severity: SeverityWarning, Text: text,
					Means: "the events behind it wait for a process that knows the version",
					Fix:   "deploy the listener that was generated with this version",
				})
			}
			unknown[text] = true
		}
		if runs[s.Listener] || s.State == ListenerPaused || s.State == ListenerRestored || s.Lag < longDue || s.Holder.Valid {
			continue
		}
		runs[s.Listener] = true // once for all shards
		found = append(found, Finding{
			Severity: SeverityWarning,
			Text: fmt.Sprintf("no running process runs listener %s, whose oldest event waits since %s", s.Listener,
				age(s.Lag)),
			Means: "its events wait, and the log keeps them",
			Fix:   "start its process; if it is not needed any more: " + e.command("listener detach "+s.Listener),
		})
	}
	return found, err
}

// checkProcesses: the processes that have said that they run still do.
func checkProcesses(ctx context.Context, e *examination) (found []Finding, err error) {
	var rows []queries.DoctorProcessesRow
	err = e.read(ctx, func(ctx context.Context, _ pgx.Tx, q *queries.Queries) error {
		rows, err = q.DoctorProcesses(ctx, pgvalue.Interval(e.goneAfter))
		return err
	})
	for _, r := range rows {
		if d := microseconds(r.AgeUs); d > aliveFor {
			worker := uuid.UUID(r.WorkerID.Bytes)
			found = append(found, Finding{
				Severity: SeverityNotice,
				Text: fmt.Sprintf("%s %s (worker %v, host %s, pid %d) was last seen %s ago", r.Kind, r.Name, worker,
					brief(r.Host), r.Pid, age(d)),
				Means: "it was killed, or it has no connection to the database; a stop would have removed it",
				Fix:   fmt.Sprintf("look at its host; to forget it: %s", e.command("processes forget "+worker.String())),
			})
		}
	}
	return found, err
}

// checkPauses reports what is paused.
func checkPauses(ctx context.Context, e *examination) (found []Finding, err error) {
	var rows []queries.DoctorPausesRow
	err = e.read(ctx, func(ctx context.Context, _ pgx.Tx, q *queries.Queries) error {
		rows, err = q.DoctorPauses(ctx)
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, r := range rows {
		tenant := tenantText(r.TenantID)
		what, resume := "", "resume"
		for _, part := range []struct{ name, text string }{
			{"listener", r.Listener}, {"namespace", r.Namespace}, {"topic", r.Topic}, {"tenant", tenant},
		} {
			if part.text != "" {
				what += part.name + " " + part.text + ", "
			}
		}
		switch {
		case r.Listener != "":
			resume += " --listener " + r.Listener
		case r.Topic != "":
			resume += " " + r.Namespace + "/" + r.Topic
		case r.Namespace != "":
			resume += " " + r.Namespace
		}
		if tenant != "" {
			resume += " --tenant " + tenant
		}
		until := ""
		if r.Until.Valid {
			until = ", until " + r.Until.Time.UTC().Format(time.RFC3339)
		}
		why := ""
		if r.Why != "" {
			why = ": " + brief(r.Why)
		}
		found = append(found, Finding{
			Severity: SeverityNotice,
			Text: fmt.Sprintf("%spaused since %s by %s%s%s", what, r.PausedAt.Time.UTC().Format(time.RFC3339), brief(r.Who),
				until, why),
			Means: "its events wait, and no attempt is charged", Fix: e.command(resume),
		})
	}
	return found, nil
}

func tenantText(id pgtype.UUID) string {
	if !id.Valid || id.Bytes == uuid.Nil {
		return ""
	}
	return uuid.UUID(id.Bytes).String()
}

// misfitBatch is how many rows of each table a statement checks.
const misfitBatch = 5000

// checkRows: the rows of an event fit together. It checks as many as it can in its time, the oldest ids first.
func checkRows(ctx context.Context, e *examination) (found []Finding, err error) {
	var total queries.DoctorMisfitsRow
	whole := false
	began := time.Now()
	at := queries.DoctorMisfitsParams{
		AfterQueued: pgtype.UUID{Valid: true}, AfterEnqueued: pgtype.UUID{Valid: true},
		AfterDelivered: pgtype.UUID{Valid: true}, BatchSize: misfitBatch,
	}
	err = e.read(ctx, func(ctx context.Context, _ pgx.Tx, q *queries.Queries) error {
		if err := q.SessionGuard(ctx); err != nil {
			return err
		}
		for time.Since(began) < checkTime {
			r, err := q.DoctorMisfits(ctx, at)
			if err != nil {
				return err
			}
			if r.Checked == 0 {
				whole = true
				return nil
			}
			for _, p := range []struct{ to, from *pgtype.UUID }{
				{&at.AfterQueued, &r.CheckedQueued}, {&at.AfterEnqueued, &r.CheckedEnqueued},
				{&at.AfterDelivered, &r.CheckedDelivered},
			} {
				if p.from.Valid {
					*p.to = *p.from
				}
			}
			total.Checked += r.Checked
			total.Orphans += r.Orphans
			total.Final += r.Final
			total.Stateless += r.Stateless
			total.Twice += r.Twice
		}
		return nil
	})
	where := ""
	if !whole {
		where = fmt.Sprintf(", among the first %d rows that were checked", total.Checked)
	}
	schema := pgx.Identifier{e.db.Name()}.Sanitize()
	for _, m := range []struct {
		n                int64
		text, means, fix string
	}{
		{
			total.Orphans, "%d rows of queue have no event",
			"somebody has deleted events by hand; a dispatcher makes them dead letters without a payload",
			"SELECT q.* FROM %[1]s.queue AS q WHERE NOT EXISTS (SELECT FROM %[1]s.events AS e WHERE e.id = q.id);",
		},
		{
			total.Final, "%d rows of queue belong to events that are delivered or dead already",
			"somebody has put them back by hand; they are delivered again, and then settled once",
			"SELECT q.* FROM %[1]s.queue AS q WHERE EXISTS (SELECT FROM %[1]s.delivered AS d WHERE d.id = q.id) OR EXISTS " +
				"(SELECT FROM %[1]s.dead_letters AS x WHERE x.id = q.id AND x.listener IS NULL);",
		},
		{
			total.Stateless, "%d events have no state: they are not queued, delivered or dead",
			"somebody has deleted their state by hand; they are never delivered and never pruned",
			"SELECT * FROM %[1]s.event_status WHERE status IS NULL; then insert them into queue, or delete them",
		},
		{
			total.Twice, "%d events are delivered and dead letters",
			"somebody has inserted one of both by hand; they are counted twice",
			"SELECT x.* FROM %[1]s.dead_letters AS x JOIN %[1]s.delivered AS d ON d.id = x.id WHERE x.listener IS NULL; then " +
				"delete the wrong rows",
		},
	} {
		if m.n > 0 {
			found = append(found, Finding{
				Severity: SeverityWarning, Text: fmt.Sprintf(m.text, m.n) + where, Means: m.means,
				Fix: fmt.Sprintf(m.fix, schema),
			})
		}
	}
	return found, err
}
