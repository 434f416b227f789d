package admin

import (
	"context"
	"time"

	"github.com/outboxgen/outboxgen/internal/postgres/queries"
)

// Overview is the state of a schema at one moment.
type Overview struct {
	// At is the moment, by the clock of the database.
	At        time.Time
	Topics    []TopicStatus    // as of Admin.Topics
	LogTopics []LogTopicStatus // as of Admin.LogTopics
	Listeners []ListenerStatus // as of Admin.Listeners
	Processes []Process        // as of Admin.Processes
	Pauses    []Pause          // as of Admin.Pauses
	Consumers []ConsumerStatus // as of Admin.Consumers
}

// Overview returns what Topics, LogTopics, Listeners, Processes, Pauses and Consumers return, in one transaction and of
// one moment. It costs less than the six calls, because they share what they read.
func (a *Admin) Overview(ctx context.Context) (Overview, error) {
	var o Overview
	err := a.db.InSnapshot(ctx, a.pool, func(q *queries.Queries) error {
		s, err := a.readShared(ctx, q)
		if err != nil {
			return err
		}
		o = Overview{Processes: s.processes, Pauses: s.pauses}
		if o.Listeners, err = readListeners(ctx, q, s); err != nil {
			return err
		}
		if o.LogTopics, err = readLogTopics(ctx, q, s.alive, CountLimit); err != nil {
			return err
		}
		if o.Consumers, err = readConsumers(ctx, q); err != nil {
			return err
		}
		o.Topics, o.At, err = readTopics(ctx, q, s, defaultQueueBounds)
		return err
	})
	if err != nil {
		return Overview{}, a.db.Wrap("read the overview", err)
	}
	return o, nil
}

// shared is what several lists need.
type shared struct {
	processes, alive []Process
	pauses           []Pause
}

func (a *Admin) readShared(ctx context.Context, q *queries.Queries) (s shared, err error) {
	if s.processes, err = processesOf(ctx, q, a.goneAfter); err != nil {
		return s, err
	}
	for _, p := range s.processes {
		if p.Alive {
			s.alive = append(s.alive, p)
		}
	}
	s.pauses, err = pausesOf(ctx, q)
	return s, err
}
