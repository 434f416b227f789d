package cards

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/inbox"
)

const (
	batchSize     = 500              // messages between two commits of offsets
	idle          = time.Second      // after which an idle projection checks for a new generation
	effectTimeout = 10 * time.Second // for one event, even if the projection is told to stop
	commitTimeout = 5 * time.Second  // for a commit of offsets
	greetTimeout  = 10 * time.Second // for Kafka to answer at the start
	pruneInterval = time.Hour
	longestPause  = 5 * time.Second // between two attempts
)

// Run projects until ctx ends, and then returns nil. It returns an error if Kafka does not answer at the start or refuses
// permanently, if an event has failed Attempts times, or if too many messages are quarantined. Nothing is lost then: the
// next Run continues from there.
func (p *Projection) Run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	var pruning sync.WaitGroup
	pruning.Go(func() { p.prune(ctx) })
	defer pruning.Wait()
	defer stop()
	for {
		generation, err := p.generation(ctx)
		if err == nil {
			err = p.runGeneration(ctx, generation)
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case !errors.Is(err, errRebuilt):
			return err
		}
		p.cfg.Logger.Info("projection is rebuilt", "generation", generation+1)
	}
}

func (p *Projection) runGeneration(ctx context.Context, generation int64) error {
	client, err := kgo.NewClient(append(slices.Clone(p.cfg.Options),
		kgo.SeedBrokers(p.cfg.Brokers...),
		kgo.ConsumerGroup(groupOf(generation)),
		kgo.ConsumeTopics(Topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), // a new group starts with the first event
		kgo.DisableAutoCommit(),                           // offsets follow the transactions
		kgo.BlockRebalanceOnPoll(),                        // a partition is not moved in the middle of a batch
		kgo.DisableClientMetrics(),
		kgo.WithLogger(kafkaLog{p.cfg.Logger}),
	)...)
	if err != nil {
		return fmt.Errorf("configure Kafka client: %w", err)
	}
	defer client.CloseAllowingRebalance()
	greet, cancel := context.WithTimeout(ctx, greetTimeout)
	defer cancel()
	if err := client.Ping(greet); err != nil {
		return fmt.Errorf("reach Kafka at %v: %w", p.cfg.Brokers, err)
	}
	for {
		if err := p.turn(ctx, client, generation); err != nil {
			return err
		}
	}
}

// turn polls a batch of messages, applies each in its own transaction, and then commits the offsets.
func (p *Projection) turn(ctx context.Context, client *kgo.Client, generation int64) error {
	polling, cancel := context.WithTimeout(ctx, idle)
	fetches := client.PollRecords(polling, batchSize)
	cancel()
	defer client.AllowRebalance()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	for _, f := range fetches.Errors() {
		switch {
		case errors.Is(f.Err, context.DeadlineExceeded): // no message
		case passes(f.Err):
			p.cfg.Logger.Warn("Kafka client error", "error", f.Err)
		default:
			return fmt.Errorf("fetch from %s partition %d: %w", f.Topic, f.Partition, f.Err)
		}
	}
	records := fetches.Records()
	if len(records) == 0 {
		return p.look(ctx, generation)
	}
	var failed error
	done := 0
	for ; done < len(records); done++ {
		if failed = p.project(ctx, generation, records[done]); failed != nil {
			break
		}
	}
	p.commit(ctx, client, records[:done])
	return failed
}

// look checks for a rebuild, so that a projection that gets no messages notices it.
func (p *Projection) look(ctx context.Context, generation int64) error {
	switch now, err := p.generation(ctx); {
	case err != nil && ctx.Err() == nil: // not fatal: the next message is retried
		p.cfg.Logger.Warn("database error", "error", err)
	case err == nil && now != generation:
		return errRebuilt
	}
	return nil
}

// passes reports whether the client recovers from an error by itself.
func passes(err error) bool {
	if _, lost := errors.AsType[*kgo.ErrDataLoss](err); lost {
		return true
	}
	_, session := errors.AsType[*kgo.ErrGroupSession](err)
	return session && !errors.Is(err, kerr.GroupAuthorizationFailed) && !errors.Is(err, kerr.TopicAuthorizationFailed)
}

// project applies one message. It returns nil if the message may be acknowledged.
func (p *Projection) project(ctx context.Context, generation int64, r *kgo.Record) error {
	for attempt := 1; ; attempt++ {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		err := p.attempt(ctx, generation, r)
		switch {
		case err == nil, errors.Is(err, errRebuilt), errors.Is(err, ErrTooManyQuarantined):
			return err
		case attempt >= p.cfg.Attempts:
			return fmt.Errorf("%s partition %d offset %d: gave up after %d attempts: %w", r.Topic, r.Partition, r.Offset, attempt, err)
		}
		pause := backoff(attempt)
		p.cfg.Logger.Warn("message is retried", "partition", r.Partition, "offset", r.Offset, "attempt", attempt, "pause", pause, "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// attempt consumes one message, or quarantines it. It finishes what it has begun, even if ctx ends.
func (p *Projection) attempt(ctx context.Context, generation int64, r *kgo.Record) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), effectTimeout)
	defer cancel()
	var outcome inbox.Outcome
	err := p.within(ctx, generation, func(tx pgx.Tx) (err error) {
		outcome, err = p.consumer.ConsumeTx(ctx, tx, consume.FromKafka(r.Headers, r.Value))
		return err
	})
	switch {
	case err == nil:
		p.count(outcome)
	case consume.IsPermanent(err):
		if err := p.quarantine(ctx, generation, r, err); err != nil {
			return err
		}
		p.counts.quarantined.Add(1)
		p.cfg.Logger.Error("message is quarantined", "partition", r.Partition, "offset", r.Offset, "error", err)
		return nil
	}
	return err
}

// commit commits the offsets to Kafka. If that fails, the messages arrive again and change nothing.
func (p *Projection) commit(ctx context.Context, client *kgo.Client, done []*kgo.Record) {
	if len(done) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer cancel()
	if err := client.CommitRecords(ctx, done...); err != nil {
		p.cfg.Logger.Warn("offsets are not committed", "error", err)
	}
}

func (p *Projection) prune(ctx context.Context) {
	tick := time.NewTicker(pruneInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if _, err := p.inbox.Prune(ctx, p.pool); err != nil && ctx.Err() == nil {
			p.cfg.Logger.Error("prune inbox", "error", err)
		}
	}
}

// backoff grows from 100 ms to longestPause. It is random between half of that and all of it.
func backoff(attempt int) time.Duration {
	d := min(100*time.Millisecond<<min(attempt-1, 10), longestPause)
	return d/2 + rand.N(d/2)
}

// kafkaLog writes warnings and errors of the Kafka client to slog.
type kafkaLog struct{ to *slog.Logger }

func (kafkaLog) Level() kgo.LogLevel { return kgo.LogLevelWarn }

func (l kafkaLog) Log(level kgo.LogLevel, text string, keyvals ...any) {
	to := slog.LevelWarn
	if level == kgo.LogLevelError {
		to = slog.LevelError
	}
	l.to.Log(context.Background(), to, "kafka client: "+text, keyvals...)
}
