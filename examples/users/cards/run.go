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
	idle          = time.Second      // after which an idle projection looks for a new generation
	effectTimeout = 10 * time.Second // of one event, also when the projection is to stop
	commitTimeout = 5 * time.Second  // of offsets
	greetTimeout  = 10 * time.Second // for Kafka to answer at the start
	pruneInterval = time.Hour
	longestPause  = 5 * time.Second // between two attempts
)

// Run projects until ctx ends, which is no error. It returns one when Kafka does not answer at the start or refuses for
// good, when an event has failed Attempts times, or when too many messages are set aside. Nothing is lost then: the next
// Run goes on from there.
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
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), // a new group begins with the first event
		kgo.DisableAutoCommit(),                           // offsets follow the transactions
		kgo.BlockRebalanceOnPoll(),                        // a partition is not given away in the middle of a batch
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

// turn takes a batch of messages, has their effects, one transaction each, and then tells Kafka.
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
		case errors.Is(f.Err, context.DeadlineExceeded): // nothing came
		case passes(f.Err):
			p.cfg.Logger.Warn("trouble with Kafka", "error", f.Err)
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

// look sees to it that a projection that nothing comes for notices a rebuild.
func (p *Projection) look(ctx context.Context, generation int64) error {
	switch now, err := p.generation(ctx); {
	case err != nil && ctx.Err() == nil: // the next message has attempts
		p.cfg.Logger.Warn("trouble with the database", "error", err)
	case err == nil && now != generation:
		return errRebuilt
	}
	return nil
}

// passes reports whether the client deals with an error by itself.
func passes(err error) bool {
	if _, lost := errors.AsType[*kgo.ErrDataLoss](err); lost {
		return true
	}
	_, session := errors.AsType[*kgo.ErrGroupSession](err)
	return session && !errors.Is(err, kerr.GroupAuthorizationFailed) && !errors.Is(err, kerr.TopicAuthorizationFailed)
}

// project has the effect of one message. It returns nil when that is settled: the message may be acknowledged.
func (p *Projection) project(ctx context.Context, generation int64, r *kgo.Record) error {
	for attempt := 1; ; attempt++ {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		err := p.attempt(ctx, generation, r)
		switch {
		case err == nil, errors.Is(err, errRebuilt), errors.Is(err, ErrTooManySetAside):
			return err
		case attempt >= p.cfg.Attempts:
			return fmt.Errorf("%s partition %d offset %d: gave up after %d attempts: %w", r.Topic, r.Partition, r.Offset, attempt, err)
		}
		pause := backoff(attempt)
		p.cfg.Logger.Warn("message is tried again", "partition", r.Partition, "offset", r.Offset, "attempt", attempt, "pause", pause, "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// attempt consumes one message, or sets it aside. What has begun is finished, even if ctx ends.
func (p *Projection) attempt(ctx context.Context, generation int64, r *kgo.Record) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), effectTimeout)
	defer cancel()
	var verdict inbox.Verdict
	err := p.within(ctx, generation, func(tx pgx.Tx) (err error) {
		verdict, err = p.consumer.ConsumeTx(ctx, tx, consume.FromKafka(r.Headers, r.Value))
		return err
	})
	switch {
	case err == nil:
		p.count(verdict)
	case consume.IsPermanent(err):
		if err := p.setAside(ctx, generation, r, err); err != nil {
			return err
		}
		p.counts.setAside.Add(1)
		p.cfg.Logger.Error("message is set aside", "partition", r.Partition, "offset", r.Offset, "error", err)
		return nil
	}
	return err
}

// commit tells Kafka how far the projection has come. If that fails the messages come again, and change nothing.
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

// backoff grows from 100 ms to longestPause, its upper half random.
func backoff(attempt int) time.Duration {
	d := min(100*time.Millisecond<<min(attempt-1, 10), longestPause)
	return d/2 + rand.N(d/2)
}

// kafkaLog hands what the client of Kafka says to slog, from warnings up.
type kafkaLog struct{ to *slog.Logger }

func (kafkaLog) Level() kgo.LogLevel { return kgo.LogLevelWarn }

func (l kafkaLog) Log(level kgo.LogLevel, text string, keyvals ...any) {
	to := slog.LevelWarn
	if level == kgo.LogLevelError {
		to = slog.LevelError
	}
	l.to.Log(context.Background(), to, "kafka client: "+text, keyvals...)
}
