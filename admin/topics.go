package admin

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/outboxgen/outboxgen/internal/postgres/pgvalue"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
)

// TopicStatus is what has become of the events of a queue topic, and who runs it.
//
// Each event that is not final is counted in one of Due, Scheduled, InFlight and Expired, or it waits for a retry that
// is not due. Retrying counts all that wait for a retry, due or not.
type TopicStatus struct {
	Namespace, Topic string `json:"-"`
	// Due events could be handled now, or as soon as a limit allows it: see Admin.LimitWaits.
	Due Count `json:"due"`
	// Retrying events have failed, or were put back until their target is available, and wait for the next attempt.
	Retrying Count `json:"retrying"`
	// Scheduled events were never tried, and are due later.
	Scheduled Count `json:"scheduled"`
	// InFlight events are claimed by a process.
	InFlight Count `json:"in_flight"`
	// Expired events were claimed, and their lease ran out: their process has died or lost the database. They are claimed
	// again, except after their last attempt, when they become dead letters.
	Expired Count `json:"expired"`
	// Dead is the number of dead letters, and DeadLastHour the number of those of the last hour.
	Dead         Count `json:"dead"`
	DeadLastHour Count `json:"dead_last_hour"`
	// Oldest is the age, since its enqueue, of the oldest event that is not final, without Scheduled ones; 0 if there is
	// none. See Admin.Topics for its precision in a large queue.
	Oldest time.Duration `json:"-"`
	// MaxLag is the Oldest that raises an alarm, as the processes know it; 0 means no alarm, or that none runs the topic.
	MaxLag time.Duration `json:"-"`
	// DeliveredPerSecond is the mean over the last five minutes. If more than 10,000 events were delivered in them, it is
	// the mean over the time of the latest 10,000. It is 0 for a topic that keeps no delivered events.
	DeliveredPerSecond float64 `json:"delivered_per_second"`
	// EnqueuedPerSecond is the same of events that were enqueued, as far as they are kept and their ids are UUIDs v7,
	// which generated code and outbox.enqueue make. If more than 20,000 events of all topics were enqueued in five
	// minutes, it is the mean over the time of the latest 20,000.
	EnqueuedPerSecond float64 `json:"enqueued_per_second"`
	// Processes are those that run the topic. Unhandled is set if there are none, and if the topic has events that are not
	// final.
	Processes []Process `json:"processes"`
	Unhandled bool      `json:"unhandled"`
	// UnhandledVersions are the versions of waiting events that are newer than what any of Processes knows.
	UnhandledVersions []int `json:"unhandled_versions,omitempty"`
	// Resting are the processes in which the topic rests, because its target is unavailable.
	Resting []Resting `json:"resting,omitempty"`
	// Pauses are those that apply to the topic, or to a tenant's events of it.
	Pauses []Pause `json:"pauses"`
}

// Name returns "namespace/topic".
func (s TopicStatus) Name() string { return s.Namespace + "/" + s.Topic }

const (
	rateOver  = 5 * time.Minute // over which a rate is the mean
	rateLimit = 10_000          // events of a topic that are counted for it
)

// queueBounds bound what Topics reads of queue.
type queueBounds struct {
	bytes int64 // size up to which the whole table is read
	rows  int64 // how many rows are read of a larger table
	exact int64 // number of events up to which the age of each is read
	ids   int32 // how many ids are read of more
	tail  int32 // how many of the latest events are read for the rate of enqueues
}

var defaultQueueBounds = queueBounds{bytes: 512 << 20, rows: 500_000, exact: 100_000, ids: 100_000, tail: 20_000}

// Topics returns the queue topics of which anything is known, by namespace and topic: those with events that wait, were
// delivered or are dead, as far as these are kept, and those that a running process takes.
//
// It takes less than a second next to millions of delivered events and a million that wait. Counts are exact up to
// CountLimit, as long as the table queue is not larger than 512 MiB, about two million rows. Of a larger table it reads
// 500,000 rows, those first that are due first. Counts that are then too small have More set. All numbers are of one
// moment.
//
// Oldest is exact if the queue holds at most 100,000 events. If it holds more, an event in its first attempt counts
// from its first due time, which is the time of its enqueue unless it was scheduled. Then events that were tried before
// are found if they are among the 100,000 with the smallest ids: generated code and outbox.enqueue make ids that grow
// with time. Others count from their latest due time.
func (a *Admin) Topics(ctx context.Context) ([]TopicStatus, error) {
	var topics []TopicStatus
	err := a.db.InSnapshot(ctx, a.pool, func(q *queries.Queries) (err error) {
		s, err := a.readShared(ctx, q)
		if err != nil {
			return err
		}
		topics, _, err = readTopics(ctx, q, s, defaultQueueBounds)
		return err
	})
	if err != nil {
		return nil, a.db.Wrap("list topics", err)
	}
	return topics, nil
}

// readTopics returns the topics, and the time of the database.
func readTopics(
	ctx context.Context, q *queries.Queries, in shared, bounds queueBounds,
) ([]TopicStatus, time.Time, error) {
	var none time.Time
	topics := make(map[string]*TopicStatus)
	of := func(namespace, topic string) *TopicStatus {
		name := namespace + "/" + topic
		if topics[name] == nil {
			topics[name] = &TopicStatus{Namespace: namespace, Topic: topic}
		}
		return topics[name]
	}
	for _, p := range in.alive {
		for name := range p.Topics {
			if namespace, topic, ok := strings.Cut(name, "/"); ok && p.Kind == ProcessDispatcher {
				of(namespace, topic)
			}
		}
	}
	history, err := q.TopicHistory(ctx, queries.TopicHistoryParams{
		RateLimit: rateLimit, RateOver: pgvalue.Interval(rateOver), DeadLimit: CountLimit + 1,
	})
	if err != nil {
		return nil, none, err
	}
	for _, r := range history {
		s := of(r.Namespace, r.Topic)
		s.Dead, s.DeadLastHour = countOf(r.Dead, false), countOf(r.DeadHour, false)
		s.DeliveredPerSecond = perSecond(r.Delivered, r.DeliveredUs)
	}
	enqueued, err := q.EventTail(ctx, queries.EventTailParams{
		RateOver: pgvalue.Interval(rateOver), TailLimit: bounds.tail,
	})
	if err != nil {
		return nil, none, err
	}
	counts, err := countQueue(ctx, q, bounds)
	if err != nil {
		return nil, none, err
	}
	for name, c := range counts.topics {
		namespace, topic, _ := strings.Cut(name, "/")
		of(namespace, topic).setCounts(c, counts.now)
	}
	read, oldest := int64(0), int64(0)
	for _, r := range enqueued {
		read, oldest = read+r.Count, max(oldest, r.OldestUs)
	}
	for _, r := range enqueued {
		if s := topics[r.Namespace+"/"+r.Topic]; s != nil { // otherwise its events are of no state, after a change by hand
			s.EnqueuedPerSecond = tailRate(r.Enqueued, read >= int64(bounds.tail), oldest)
		}
	}
	list := make([]TopicStatus, 0, len(topics))
	for _, s := range topics {
		if counts.cut[s.Namespace] {
			for _, c := range []*Count{&s.Due, &s.Retrying, &s.Scheduled, &s.InFlight, &s.Expired} {
				c.More = true
			}
		}
		s.setProcesses(in.alive, counts.topics[s.Name()])
		s.setPauses(in.pauses)
		list = append(list, *s)
	}
	slices.SortFunc(list, func(a, b TopicStatus) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Topic, b.Topic))
	})
	return list, counts.now, nil
}

// setCounts fills in what is in queue.
func (s *TopicStatus) setCounts(c *topicCounts, now time.Time) {
	s.Due = countOf(c.of[queueDue]+c.of[queueDueAgain], false)
	s.Retrying = countOf(c.of[queueLaterAgain]+c.of[queueDueAgain], false)
	s.Scheduled = countOf(c.of[queueLater], false)
	s.InFlight = countOf(c.of[queueInFlight], false)
	s.Expired = countOf(c.of[queueExpired], false)
	if !c.oldest.IsZero() {
		s.Oldest = max(now.Sub(c.oldest), 0)
	}
}

// setProcesses fills in who runs the topic. c may be nil.
func (s *TopicStatus) setProcesses(processes []Process, c *topicCounts) {
	name, newest := s.Name(), 0
	for _, p := range processes {
		known, ok := p.Topics[name]
		if !ok || p.Kind != ProcessDispatcher {
			continue
		}
		s.Processes = append(s.Processes, p)
		newest = max(newest, known.Version)
		if known.MaxLag > 0 && (s.MaxLag == 0 || known.MaxLag < s.MaxLag) {
			s.MaxLag = known.MaxLag
		}
		for _, key := range []string{name, s.Topic} {
			if reason, rests := p.Resting[key]; rests {
				s.Resting = append(s.Resting, Resting{WorkerID: p.WorkerID, Reason: reason})
				break
			}
		}
	}
	if c == nil {
		return
	}
	s.Unhandled = len(s.Processes) == 0
	for _, v := range slices.Sorted(maps.Keys(c.versions)) {
		if len(s.Processes) > 0 && v > newest {
			s.UnhandledVersions = append(s.UnhandledVersions, v)
		}
	}
}

// setPauses fills in the pauses that concern the topic.
func (s *TopicStatus) setPauses(pauses []Pause) {
	for _, p := range pauses {
		if p.Listener == "" && (p.Namespace == "" || p.Namespace == s.Namespace) && (p.Topic == "" || p.Topic == s.Topic) {
			s.Pauses = append(s.Pauses, p)
		}
	}
}

// The states in which QueueCounts counts events.
const (
	queueInFlight   = 1
	queueExpired    = 2
	queueLater      = 3
	queueLaterAgain = 4
	queueDue        = 5
	queueDueAgain   = 6
)

// queueCounts is what queue has of each topic, by "namespace/topic".
type queueCounts struct {
	topics map[string]*topicCounts
	cut    map[string]bool // namespaces of which not all rows were read
	now    time.Time
}

type topicCounts struct {
	of       [queueDueAgain + 1]int64
	versions map[int]bool
	oldest   time.Time // zero if there are only scheduled events
}

func (c *topicCounts) waits(since time.Time) {
	if c.oldest.IsZero() || since.Before(c.oldest) {
		c.oldest = since
	}
}

// countQueue reads queue, or the first rows of each lane if the table is large.
func countQueue(ctx context.Context, q *queries.Queries, bounds queueBounds) (*queueCounts, error) {
	counts := &queueCounts{topics: make(map[string]*topicCounts), cut: make(map[string]bool)}
	size, err := q.QueueSize(ctx)
	if err != nil {
		return nil, err
	}
	counts.now = size.Now.Time
	var rows []queries.QueueCountsRow
	if size.Bytes <= bounds.bytes {
		if err := q.ScanWhole(ctx); err != nil {
			return nil, err
		}
		if rows, err = q.QueueCounts(ctx); err != nil {
			return nil, err
		}
		err = q.SessionGuard(ctx)
	} else {
		rows, err = countLanes(ctx, q, bounds.rows, counts.cut)
	}
	if err != nil {
		return nil, err
	}
	total, tried := int64(0), false
	for _, r := range rows {
		name := r.Namespace + "/" + r.Topic
		c := counts.topics[name]
		if c == nil {
			c = &topicCounts{versions: make(map[int]bool)}
			counts.topics[name] = c
		}
		c.of[r.State] += r.Count
		c.versions[int(r.Version)] = true
		if r.State != queueLater {
			c.waits(earlier(r.FirstDue.Time, counts.now))
		}
		total += r.Count
		tried = tried || r.Tried
	}
	switch {
	case total <= bounds.exact:
		oldest, err := q.QueueOldest(ctx)
		for _, c := range counts.topics {
			c.oldest = time.Time{}
		}
		for _, r := range oldest {
			counts.topics[r.Namespace+"/"+r.Topic].waits(r.CreatedAt.Time)
		}
		return counts, err
	case tried:
		first, err := q.QueueFirstTried(ctx, bounds.ids)
		for _, r := range first {
			if c := counts.topics[r.Namespace+"/"+r.Topic]; c != nil {
				c.waits(r.CreatedAt.Time)
			}
		}
		return counts, err
	}
	return counts, nil
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// countLanes reads limit rows of queue: as many of each lane, and then more of those that have more, as far as the
// others have left something. It sets cut for the namespaces of which it has not read all.
func countLanes(
	ctx context.Context, q *queries.Queries, limit int64, cut map[string]bool,
) ([]queries.QueueCountsRow, error) {
	lanes, err := q.QueueLanes(ctx)
	if err != nil {
		return nil, err
	}
	read := make(map[queries.QueueLanesRow][]queries.QueueCountsByLaneRow)
	last := int64(0)
	for range 3 {
		if len(lanes) == 0 || limit/int64(len(lanes)) <= last {
			break
		}
		piece := max(limit/int64(len(lanes)), 1)
		p := queries.QueueCountsByLaneParams{Piece: int32(piece)}
		for _, l := range lanes {
			p.Namespaces, p.Lanes = append(p.Namespaces, l.Namespace), append(p.Lanes, l.Lane)
			delete(read, l)
		}
		rows, err := q.QueueCountsByLane(ctx, p)
		if err != nil {
			return nil, err
		}
		for _, r := range rows {
			l := queries.QueueLanesRow{Namespace: r.Namespace, Lane: r.Lane}
			read[l] = append(read[l], r)
		}
		clear(cut)
		var more []queries.QueueLanesRow
		for _, l := range lanes {
			n := int64(0)
			for _, r := range read[l] {
				n += r.Count
			}
			if n < piece {
				limit -= n
				continue
			}
			more = append(more, l)
			cut[l.Namespace] = true
		}
		lanes, last = more, piece
	}
	var all []queries.QueueCountsRow
	for _, rows := range read {
		for _, r := range rows {
			all = append(all, queries.QueueCountsRow{
				Namespace: r.Namespace, Topic: r.Topic, Version: r.Version, State: r.State, Tried: r.Tried, Count: r.Count,
				FirstDue: r.FirstDue,
			})
		}
	}
	return all, nil
}
