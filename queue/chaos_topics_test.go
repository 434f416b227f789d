package queue_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/queue"
)

const (
	chaosLease    = 2 * time.Second
	chaosPeriod   = 2 * time.Second // of rates
	chaosEditions = 3
	chaosTenants  = 4
	chaosFields   = 24
)

// chaosTopic is a topic of a campaign.
type chaosTopic struct {
	outbox.Topic[runtimetest.Job]
	backlog int           // events that wait; the producer adds others while there are fewer
	most    time.Duration // that a handler takes; 0 means that it returns at once, and records nothing
}

// chaosTopics returns the topics as an edition of the program has them: limits of the whole topic, per tenant, per field
// and per destination, each with a concurrency, with a rate, or with both. Edition 1 has other values, and the turns of
// edition 2 differ. The rates are so low that a machine that is busy reaches them. fast adds topics with wide limits.
func chaosTopics(edition int, fast bool) []chaosTopic {
	rate := func(n int) outbox.Rate { return outbox.Rate{Events: n, Period: chaosPeriod} }
	v := func(usual, other int) int {
		if edition == 1 {
			return other
		}
		return usual
	}
	limited := runtimetest.LimitedJobs("limited", outbox.Limit{Concurrency: v(8, 5)}, outbox.Limit{Per: outbox.PerTenant, Concurrency: v(3, 2)},
		outbox.Limit{Per: "{secret}", Concurrency: 1, Rate: rate(v(6, 4))})
	batched := runtimetest.LimitedJobs("batched", outbox.Limit{Rate: rate(v(16, 12))}, outbox.Limit{Per: outbox.PerTenant, Concurrency: 4, Rate: rate(6)})
	sent := runtimetest.LimitedJobs("sent", outbox.Limit{Per: outbox.PerTenant, Rate: rate(v(15, 12))},
		outbox.Limit{Per: outbox.PerDestination, Concurrency: v(2, 1), Rate: rate(v(8, 6))})
	all := []chaosTopic{
		{fairUnless(limited, edition == 2), 40, 100 * time.Millisecond},
		{runtimetest.JobTopic("plain"), 5, 5 * time.Millisecond},
		{runtimetest.Altered(batched, func(s *outbox.TopicSpec) { s.Batch = outbox.Batch{Size: 4, Wait: 100 * time.Millisecond} }), 30, 50 * time.Millisecond},
		{fairUnless(sent, edition != 2), 30, 50 * time.Millisecond},
	}
	if fast {
		wide := runtimetest.LimitedJobs("wide", outbox.Limit{Concurrency: v(500, 300)}, outbox.Limit{Per: outbox.PerTenant, Concurrency: v(150, 90)},
			outbox.Limit{Per: "{secret}", Concurrency: 60})
		swift := runtimetest.LimitedJobs("swift", outbox.Limit{Per: "{secret}", Rate: rate(v(60, 50))})
		all = append(all, chaosTopic{fairUnless(wide, edition == 2), 3000, 0}, chaosTopic{swift, 150, 0})
	}
	for i := range all {
		all[i].Topic = runtimetest.Altered(all[i].Topic, func(s *outbox.TopicSpec) { s.Retry.MaxAttempts = patientLimit })
	}
	return all
}

func fairUnless(topic outbox.Topic[runtimetest.Job], not bool) outbox.Topic[runtimetest.Job] {
	return runtimetest.Altered(topic, func(s *outbox.TopicSpec) {
		if !not {
			s.Fairness = outbox.FairnessTenant
		}
	})
}

func (c *chaosTopic) spec() outbox.TopicSpec { return c.Untyped().Spec() }

// job returns a job of a random field. A quarter of the jobs more is of four fields.
func (c *chaosTopic) job(n int64) runtimetest.Job {
	field := rand.IntN(chaosFields)
	if rand.IntN(4) == 0 {
		field = rand.IntN(4)
	}
	return runtimetest.Job{N: n, TenantID: uuid.UUID{byte(1 + field%chaosTenants)}, Secret: fmt.Sprint("field ", field)}
}

// handler returns what delivers the events: a publisher, a handler of batches, or a handler.
func (c *chaosTopic) handler(pool *pgxpool.Pool, worker string) queue.Handler {
	switch spec := c.spec(); {
	case c.most == 0:
		return runtimetest.OnJob(c.Topic, runtimetest.Succeed)
	case spec.Name == "sent":
		return queue.Publish(c.Topic, publish.Publication{Broker: "hook", DestinationOf: func(v any) string { return v.(*runtimetest.Job).Secret }})
	case spec.Batch.Size > 0:
		return recordedBatch(pool, c.Topic, worker, c.most)
	}
	return recorded(pool, c.Topic, worker, c.most)
}

// recordedHooks is a publisher that records its calls as handlers do.
type recordedHooks struct {
	pool   *pgxpool.Pool
	worker string
	most   time.Duration
}

func (h *recordedHooks) Publish(ctx context.Context, events []publish.Outgoing) []error {
	began, errs := realNow(), make([]error, len(events))
	fail := func(err error) []error {
		for i := range errs {
			errs[i] = err
		}
		return errs
	}
	var nos []int64
	for _, o := range events {
		no, err := recordCall(ctx, h.pool, &o.Event, o.Destination, h.worker, began)
		if err != nil {
			return fail(err)
		}
		nos = append(nos, no)
	}
	if rand.IntN(32) == 0 {
		return fail(outbox.Unavailable(errors.New("nobody home")))
	}
	return fail(attempt(ctx, h.pool, h.most, nos, int64(rand.IntN(29))))
}
