package admin

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/outboxgen/outboxgen/internal/postgres/pgvalue"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
)

// LogTopicStatus is what the log has of a topic, and who reads it.
type LogTopicStatus struct {
	Namespace, Topic string
	// Events are the events in the log: those that were not pruned.
	Events Count
	// AppendedPerSecond is the mean over the last five minutes. If more events were appended in them, to all topics, than
	// are looked at, it is the mean over the time of those.
	AppendedPerSecond float64
	// Latest is the enqueue of the latest event; zero if none of the topic was looked at.
	Latest time.Time
	// Listeners are those that read the topic, by name, as running processes say.
	Listeners []string
}

// Name returns "namespace/topic".
func (s LogTopicStatus) Name() string { return s.Namespace + "/" + s.Topic }

// LogTopics returns the log topics of which anything is known, by namespace and topic: those with events in the log and
// those that a running process reads. It looks at the latest CountLimit events of the log, so its cost does not grow
// with the log. Of a longer log, Events has More set for all topics, and topics without newer events are only found if
// they are read. All numbers are of one moment.
func (a *Admin) LogTopics(ctx context.Context) ([]LogTopicStatus, error) {
	var topics []LogTopicStatus
	err := a.db.InSnapshot(ctx, a.pool, func(q *queries.Queries) error {
		processes, err := aliveProcesses(ctx, q)
		if err != nil {
			return err
		}
		topics, err = readLogTopics(ctx, q, processes, CountLimit)
		return err
	})
	if err != nil {
		return nil, a.db.Wrap("list log topics", err)
	}
	return topics, nil
}

// readLogTopics looks at the latest most events of the log.
func readLogTopics(ctx context.Context, q *queries.Queries, processes []Process, most int64) ([]LogTopicStatus, error) {
	topics := make(map[string]*LogTopicStatus)
	of := func(namespace, topic string) *LogTopicStatus {
		name := namespace + "/" + topic
		if topics[name] == nil {
			topics[name] = &LogTopicStatus{Namespace: namespace, Topic: topic}
		}
		return topics[name]
	}
	rows, err := q.LogTail(ctx, queries.LogTailParams{TailLimit: int32(most + 1), RateOver: pgvalue.Interval(rateOver)})
	if err != nil {
		return nil, err
	}
	read, oldest := int64(0), int64(0)
	for _, r := range rows {
		read, oldest = read+r.Count, max(oldest, r.OldestUs)
	}
	more := read > most
	for _, r := range rows {
		s := of(r.Namespace, r.Topic)
		s.Events = Count{N: min(r.Count, most), More: more}
		s.AppendedPerSecond = tailRate(r.Appended, more, oldest)
		s.Latest = r.Latest.Time
	}
	for _, p := range processes {
		for name := range p.Topics {
			namespace, topic, ok := strings.Cut(name, "/")
			if !ok || p.Kind != ProcessListener {
				continue
			}
			s := of(namespace, topic)
			s.Events.More = more
			if !slices.Contains(s.Listeners, p.Name) {
				s.Listeners = append(s.Listeners, p.Name)
			}
		}
	}
	list := make([]LogTopicStatus, 0, len(topics))
	for _, s := range topics {
		slices.Sort(s.Listeners)
		list = append(list, *s)
	}
	slices.SortFunc(list, func(a, b LogTopicStatus) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Topic, b.Topic))
	})
	return list, nil
}

// tailRate is the rate of n events among the latest ones. If there are others in rateOver, which were not read, it is
// that of the time since the oldest one that was.
func tailRate(n int64, more bool, oldestUs int64) float64 {
	over := rateOver.Microseconds()
	if more {
		over = min(over, oldestUs)
	}
	return perSecond(n, over)
}

// perSecond is the rate of n events in us microseconds.
func perSecond(n, us int64) float64 {
	if n == 0 {
		return 0
	}
	return float64(n) / max(microseconds(us), time.Millisecond).Seconds()
}
