package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxgen/outboxgen/internal/broker/lograte"
	"github.com/outboxgen/outboxgen/internal/call/backoff"
)

const (
	// pollRecords is how many records are taken from the client at a time.
	pollRecords = 2000
	// commitTimeout bounds a commit of offsets.
	commitTimeout = 5 * time.Second
	// watchInterval is how often the topics are looked at.
	watchInterval = 30 * time.Second
)

// Run consumes until ctx ends. Then it finishes the transactions that are under way, within the ShutdownTimeout,
// commits the offsets, leaves the group and returns nil. It returns an error if a topic does not exist, access is
// refused, no broker answers at the start, the database is not migrated, or the group ends it: see the Err variables,
// receive.ErrOnlyDead and receive.Stop. Nothing is lost then: the next Run continues from there.
func (r *Receiver) Run(ctx context.Context) error {
	if !r.running.CompareAndSwap(false, true) {
		return fmt.Errorf("run Kafka receiver: %w", ErrRunning)
	}
	defer r.running.Store(false)
	began := time.Now()
	err := r.run(ctx)
	if err != nil {
		err = fmt.Errorf("consume %s as %s: %w", strings.Join(r.cfg.Topics, ", "), r.cfg.Group, err)
		r.log.Error("Kafka receiver has stopped", "ran", time.Since(began).Round(time.Millisecond), "error", err)
		return err
	}
	r.log.Info("Kafka receiver has stopped", "ran", time.Since(began).Round(time.Millisecond))
	return nil
}

// leaveTimeout is how long a member may take to commit its offsets and to leave the group. While the group is
// rebalanced, the brokers answer only when all members have joined, which notice it at their next heartbeat, or after
// the rebalance timeout. A member that did not leave is missed after the session timeout.
const leaveTimeout = 5 * time.Second

func (r *Receiver) run(outer context.Context) error {
	ctx, stop := context.WithCancelCause(outer)
	defer stop(nil)
	if err := r.receiver.Ready(ctx); err != nil {
		return err
	}
	plain, err := r.plain(&r.access)
	if err != nil {
		return err
	}
	defer plain.Close()
	admin := kadm.NewClient(plain)
	counts, err := r.greet(ctx, admin)
	if err != nil {
		if outer.Err() != nil {
			return nil
		}
		return err
	}
	r.log.Info("Kafka receiver starts", "brokers", r.cfg.Brokers, "destinations", r.cfg.Topics)
	r.open(ctx, stop) // before the client joins the group
	alive, kill := context.WithCancel(context.WithoutCancel(outer))
	defer kill()
	client, err := newClient(append(r.options(), kgo.WithContext(alive)))
	if err != nil {
		return err
	}
	defer func() {
		defer time.AfterFunc(leaveTimeout, kill).Stop()
		client.CloseAllowingRebalance()
	}()
	var others sync.WaitGroup
	others.Go(func() {
		if err := r.receiver.Run(ctx); err != nil {
			stop(err)
		}
	})
	others.Go(func() {
		if err := r.watch(ctx, client, admin, counts); err != nil {
			stop(err)
		}
	})
	r.poll(ctx, client, stop)
	r.close()
	others.Wait()
	if cause := context.Cause(ctx); outer.Err() == nil && cause != nil {
		return cause
	}
	return nil
}

// greet waits for the cluster and for the topics. It returns the number of partitions of each.
func (r *Receiver) greet(ctx context.Context, admin *kadm.Client) (map[string]int, error) {
	limit := time.Now().Add(r.cfg.StartTimeout)
	said := false
	var cause error // the latest that says more than that there was no answer in time
	for {
		asking, cancel := context.WithDeadline(ctx, limit)
		forget := r.access.onRefusal(cancel)
		topics, err := admin.ListTopics(asking, r.cfg.Topics...)
		forget()
		cancel()
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if _, refusal := r.access.refusal(); err != nil && refusal != nil {
			return nil, refusal
		}
		if err == nil {
			counts, missing, err := r.look(topics)
			switch {
			case err != nil:
				return nil, err
			case missing == "":
				return counts, nil
			}
			return r.awaitTopics(ctx, admin, missing)
		}
		if refusal := refused("topics "+strings.Join(r.cfg.Topics, ", "), err); refusal != nil {
			return nil, refusal
		}
		if err = r.access.explain(err); cause == nil || !tooLate(err) {
			cause = err
		}
		if time.Now().After(limit) {
			return nil, fmt.Errorf("%w at %s within %s: %w", ErrUnreachable, strings.Join(r.cfg.Brokers, ","),
				r.cfg.StartTimeout, cause)
		}
		if !said {
			said = true
			r.log.Warn("no broker answers: records wait", "brokers", r.cfg.Brokers, "error", err)
		}
		backoff.Sleep(ctx, min(time.Second, time.Until(limit)))
	}
}

// look returns the number of partitions of each topic, and one that does not exist.
func (r *Receiver) look(topics kadm.TopicDetails) (counts map[string]int, missing string, err error) {
	counts = make(map[string]int)
	for _, name := range r.cfg.Topics {
		detail := topics[name]
		switch {
		case detail.Err == nil && len(detail.Partitions) > 0:
			counts[name] = len(detail.Partitions)
		case detail.Err == nil, errors.Is(detail.Err, kerr.UnknownTopicOrPartition),
			errors.Is(detail.Err, kerr.UnknownTopicID):
			missing = name
		case refused("topic "+name, detail.Err) != nil:
			return nil, "", refused("topic "+name, detail.Err)
		case kerr.IsRetriable(detail.Err):
			counts[name] = 0 // not known now
		default:
			return nil, "", fmt.Errorf("topic %s: %w", name, detail.Err)
		}
	}
	return counts, missing, nil
}

// awaitTopics waits for topics that are created a little later.
func (r *Receiver) awaitTopics(ctx context.Context, admin *kadm.Client, missing string) (map[string]int, error) {
	r.log.Warn("a topic does not exist: records wait", "destination", missing)
	limit := time.Now().Add(r.cfg.UnknownTopicTimeout)
	for {
		if !time.Now().Before(limit) {
			return nil, fmt.Errorf("topic %s: %w: create it, or correct Config.Topics", missing, ErrUnknownTopic)
		}
		backoff.Sleep(ctx, min(time.Second, time.Until(limit)))
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		asking, cancel := context.WithTimeout(ctx, 10*time.Second)
		topics, err := admin.ListTopics(asking, r.cfg.Topics...)
		cancel()
		if err != nil {
			continue
		}
		counts, still, err := r.look(topics)
		if err != nil || still == "" {
			return counts, err
		}
		missing = still
	}
}

// watch looks from time to time for a topic that was deleted, for more partitions, and for credentials that are
// refused.
func (r *Receiver) watch(ctx context.Context, client *kgo.Client, admin *kadm.Client, counts map[string]int) error {
	gone := make(map[string]time.Time)
	for interval := min(watchInterval, max(min(r.cfg.UnknownTopicTimeout, r.cfg.StartTimeout)/2, 10*time.Millisecond)); ; {
		backoff.Sleep(ctx, interval)
		if ctx.Err() != nil {
			return nil
		}
		asking, cancel := context.WithTimeout(ctx, 10*time.Second)
		topics, err := admin.ListTopics(asking, r.cfg.Topics...)
		cancel()
		if since, refusal := r.access.refusal(); refusal != nil && time.Since(since) > r.cfg.StartTimeout {
			return refusal
		}
		if err != nil {
			clear(gone) // the cluster is away, and says nothing about topics
			continue
		}
		now, missing, err := r.look(topics)
		if err != nil {
			return err
		}
		for name, n := range now {
			delete(gone, name)
			if before := counts[name]; before > 0 && n > before {
				r.log.Warn("a topic has more partitions: keys have moved, and their order is not kept across the change",
					"destination", name, "partitions", n, "before", before)
				client.ForceMetadataRefresh() // so that somebody gets them now
			}
			counts[name] = max(n, counts[name])
		}
		switch since, known := gone[missing]; {
		case missing == "":
		case !known:
			gone[missing] = time.Now()
			r.log.Warn("a topic does not exist: records wait", "destination", missing)
		case time.Since(since) > r.cfg.UnknownTopicTimeout:
			return fmt.Errorf("topic %s: %w any more: create it, or correct Config.Topics", missing, ErrUnknownTopic)
		}
	}
}

// poll hands records to the partitions until ctx ends.
func (r *Receiver) poll(ctx context.Context, client *kgo.Client, stop context.CancelCauseFunc) {
	trouble := time.Time{} // when one was logged
	for ctx.Err() == nil {
		fetches := client.PollRecords(ctx, pollRecords)
		fetches.EachPartition(func(p kgo.FetchTopicPartition) {
			if len(p.Records) > 0 {
				r.hand(target{p.Topic, p.Partition}, p.Records)
			}
		})
		client.AllowRebalance()
		for _, e := range fetches.Errors() {
			switch err := r.fatal(e); {
			case ctx.Err() != nil, errors.Is(e.Err, context.Canceled):
			case err != nil:
				stop(err)
			case time.Since(trouble) > time.Minute:
				trouble = time.Now()
				r.log.Warn("Kafka does not answer as expected: records wait", "destination", e.Topic, "partition", e.Partition,
					"error", e.Err)
			}
		}
		if len(fetches.Errors()) > 0 {
			backoff.Sleep(ctx, 100*time.Millisecond)
		}
	}
}

// fatal returns what an error of a fetch says to Run, or nil if it may pass.
func (r *Receiver) fatal(e kgo.FetchError) error {
	where := "topic " + e.Topic
	if e.Topic == "" {
		where = "group " + r.cfg.Group
	}
	if refusal := refused(where, e.Err); refusal != nil {
		return refusal
	}
	if errors.Is(e.Err, kgo.ErrClientClosed) {
		return e.Err
	}
	for _, code := range []*kerr.Error{
		kerr.InvalidGroupID, kerr.InconsistentGroupProtocol, kerr.FencedInstanceID, kerr.UnreleasedInstanceID,
		kerr.GroupMaxSizeReached, kerr.InvalidSessionTimeout, kerr.UnsupportedVersion, kerr.InvalidTopicException,
	} {
		if errors.Is(e.Err, code) {
			return fmt.Errorf("%s: %w", where, e.Err)
		}
	}
	return nil
}

// logger writes warnings and errors of the client to slog.
type logger struct{ to *lograte.Limit }

func (logger) Level() kgo.LogLevel { return kgo.LogLevelWarn }

func (l logger) Log(level kgo.LogLevel, msg string, keyvals ...any) {
	to := slog.LevelWarn
	if level == kgo.LogLevelError {
		to = slog.LevelError
	}
	l.to.Log(context.Background(), to, "kafka client: "+msg, keyvals...)
}
