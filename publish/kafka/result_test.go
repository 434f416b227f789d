package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/plain"

	"github.com/outboxgen/outboxgen/internal/testing/freeport"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/kafka"
)

// TestOutcomeOfCodes tests the table in the package comment.
func TestOutcomeOfCodes(t *testing.T) {
	t.Parallel()
	const permanent, unavailable, barred, attempt = "permanent", "unavailable", "broker unavailable", "attempt"
	for code, want := range map[*kerr.Error]string{
		kerr.MessageTooLarge:                    permanent,
		kerr.RecordListTooLarge:                 permanent,
		kerr.InvalidRecord:                      permanent,
		kerr.InvalidTopicException:              permanent,
		kerr.TopicAuthorizationFailed:           unavailable,
		kerr.ClusterAuthorizationFailed:         barred,
		kerr.TransactionalIDAuthorizationFailed: unavailable,
		kerr.NotEnoughReplicas:                  unavailable,
		kerr.NotEnoughReplicasAfterAppend:       unavailable,
		kerr.NotLeaderForPartition:              unavailable,
		kerr.RequestTimedOut:                    unavailable,
		kerr.KafkaStorageError:                  unavailable,
		kerr.ThrottlingQuotaExceeded:            unavailable,
		kerr.OutOfOrderSequenceNumber:           unavailable,
		kerr.InvalidProducerEpoch:               unavailable,
		kerr.UnsupportedVersion:                 unavailable,
		kerr.InvalidRequiredAcks:                unavailable,
		kerr.UnknownServerError:                 attempt,
		kerr.CorruptMessage:                     attempt,
		kerr.InvalidTimestamp:                   attempt,
		kerr.InvalidRequest:                     attempt,
	} {
		t.Run(code.Message, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			p := c.publisher(t, func(cfg *kafka.Config) {
				if want == unavailable {
					cfg.Timeout = 5 * time.Second // an immediate answer of Kafka must not get lost in a timeout
				}
			})
			h := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: code, Count: -1})
			first, second := event("a", 0), event("a", 1)
			errs := p.Publish(t.Context(), []publish.Outgoing{first, second})
			got := attempt
			if outbox.IsPermanent(errs[0]) {
				got = permanent
			} else if outbox.IsBrokerUnavailable(errs[0]) {
				got = barred
			} else if outbox.IsUnavailable(errs[0]) {
				got = unavailable
			}
			require.Equal(t, want, got, "%v", errs[0])
			require.Equal(t, outbox.ErrBehind, errs[1])
			h.Remove()
			settle(t, p, []publish.Outgoing{first, second})
		})
	}
}

// TestUnknownTopic: a topic may be created a little late. If it is never created, only its own events become dead letters.
func TestUnknownTopic(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	p := c.publisher(t, func(cfg *kafka.Config) { cfg.Timeout = patience })
	first, second, other := event("a", 0), event("a", 1), event("b", 2)
	first.Destination, second.Destination = "late", "late"
	publish := func() []error { return p.Publish(t.Context(), []publish.Outgoing{first, second, other}) }

	errs := publish()
	require.ErrorIs(t, errs[0], kerr.UnknownTopicOrPartition)
	require.ErrorContains(t, errs[0], "produce to late: ")
	require.True(t, outbox.IsUnavailable(errs[0]))
	require.Equal(t, outbox.ErrBehind, errs[1])
	require.NoError(t, errs[2])

	admin := c.admin(t)
	_, err := admin.CreateTopic(t.Context(), 3, 1, nil, "late")
	require.NoError(t, err)
	require.Equal(t, make([]error, 3), publish())
	require.Len(t, c.received("late"), 2)

	_, err = admin.DeleteTopic(t.Context(), "late")
	require.NoError(t, err)
	errs = publish()
	require.True(t, outbox.IsUnavailable(errs[0]), "%v", errs[0])
	require.ErrorContains(t, errs[0], "its events wait", "however long, by default")
	require.NoError(t, errs[2])
	_, err = admin.CreateTopic(t.Context(), 3, 1, nil, "late")
	require.NoError(t, err)
	require.Equal(t, make([]error, 3), publish())
}

func TestTopicThatStaysUnknown(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	p := c.publisher(t, func(cfg *kafka.Config) { cfg.Timeout = patience; cfg.UnknownTopicTimeout = -1 })
	first, second, other, none := event("a", 0), event("a", 1), event("b", 2), event("c", 3)
	first.Destination, second.Destination, none.Destination = "misspelt", "misspelt", ""
	errs := p.Publish(t.Context(), []publish.Outgoing{first, second, other, none})
	require.True(t, outbox.IsPermanent(errs[0]), "%v", errs[0])
	require.Equal(t, outbox.ErrBehind, errs[1])
	require.NoError(t, errs[2])
	require.True(t, outbox.IsPermanent(errs[3]), "%v", errs[3])
}

// TestCredentials: wrong credentials and missing rights affect all events, so they count no attempt.
func TestCredentials(t *testing.T) {
	t.Parallel()
	login := func(user, pass string) func(*kafka.Config) {
		return func(cfg *kafka.Config) {
			cfg.Timeout = 2 * time.Second
			cfg.Options = []kgo.Opt{kgo.SASL(plain.Auth{User: user, Pass: pass}.AsMechanism())}
		}
	}
	c := newCluster(t, kfake.EnableSASL(), kfake.EnableACLs(), kfake.Superuser("PLAIN", "root", "secret"), kfake.User("PLAIN", "guest", "guest"))
	for name, config := range map[string]func(*kafka.Config){
		"no credentials":    func(cfg *kafka.Config) { cfg.Timeout = 2 * time.Second },
		"wrong credentials": login("root", "wrong"),
		"no rights":         login("guest", "guest"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			errs := c.publisher(t, config).Publish(t.Context(), []publish.Outgoing{event("a", 0), event("a", 1), event("", 2)})
			require.True(t, outbox.IsUnavailable(errs[0]), "%v", errs[0])
			require.Equal(t, name != "no rights", outbox.IsBrokerUnavailable(errs[0]), "%v", errs[0])
			require.Equal(t, outbox.ErrBehind, errs[1])
			require.True(t, outbox.IsUnavailable(errs[2]), "%v", errs[2])
			require.ErrorContains(t, errs[0], "produce to sc.domain.user: ")
		})
	}
	t.Run("right credentials", func(t *testing.T) {
		t.Parallel()
		require.Equal(t, []error{nil}, c.publisher(t, login("root", "secret"), func(cfg *kafka.Config) { cfg.Timeout = patience }).Publish(t.Context(), []publish.Outgoing{event("a", 0)}))
	})
}

// TestRefusedCredentialsAreNamed: the error of refused credentials names the broker and the mechanism, whether the broker says what
// is wrong or hangs up, with and without a transactional id. It is that of the whole broker.
func TestRefusedCredentialsAreNamed(t *testing.T) {
	t.Parallel()
	for _, says := range []bool{true, false} {
		for _, id := range []string{"", "relay"} {
			t.Run(fmt.Sprintf("says=%t, id=%q", says, id), func(t *testing.T) {
				t.Parallel()
				c := newCluster(t, kfake.EnableSASL(), kfake.Superuser("PLAIN", "root", "secret"))
				want := "EOF"
				if says {
					c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.SASLAuthenticate}, TopLevel: true, Err: kerr.SaslAuthenticationFailed, Count: -1})
					want = kerr.SaslAuthenticationFailed.Error()
				}
				p := c.publisher(t, func(cfg *kafka.Config) {
					cfg.Timeout, cfg.TransactionalID = 2*time.Second, id
					cfg.Options = []kgo.Opt{kgo.SASL(plain.Auth{User: "root", Pass: "S3CRET"}.AsMechanism())}
				})
				err := p.Publish(inLane(t.Context(), holds), []publish.Outgoing{event("a", 0)})[0]
				require.True(t, outbox.IsBrokerUnavailable(err), "%v", err)
				require.Regexp(t, "broker 127.0.0.1:[0-9]+, SASL PLAIN: "+want, err.Error())
				require.NotContains(t, err.Error(), "S3CRET")
			})
		}
	}
}

// TestNobodyAnswers: an address that refuses connections, and one that takes them and does not answer.
func TestNobodyAnswers(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = silent.Close() })
	port, err := freeport.Find()
	require.NoError(t, err)
	gone := fmt.Sprintf("127.0.0.1:%d", port)
	for name, addr := range map[string]string{"refused": gone, "silent": silent.Addr().String()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, err := kafka.New(kafka.Config{Brokers: []string{addr}, Timeout: 500 * time.Millisecond})
			require.NoError(t, err)
			defer p.Close()
			began := time.Now()
			errs := p.Publish(t.Context(), []publish.Outgoing{event("a", 0), event("a", 1)})
			require.Less(t, time.Since(began), patience)
			require.True(t, outbox.IsBrokerUnavailable(errs[0]), "%v", errs[0])
			require.Equal(t, outbox.ErrBehind, errs[1])
			require.ErrorContains(t, errs[0], "produce to sc.domain.user: no acknowledgement from Kafka at "+addr)

			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			errs = p.Publish(ctx, []publish.Outgoing{event("a", 0)})
			require.ErrorIs(t, errs[0], context.DeadlineExceeded)
			require.False(t, outbox.IsUnavailable(errs[0]), "the context ended the call, not the broker")
		})
	}
}

// TestSilentTopicIsNotTheWholeBroker: if the broker of a topic takes requests and does not answer, only that topic rests.
func TestSilentTopicIsNotTheWholeBroker(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	p := c.publisher(t, func(cfg *kafka.Config) { cfg.Timeout = time.Second })
	settle(t, p, []publish.Outgoing{event("a", 0)})
	c.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		return nil, nil, true // no reply
	})
	err := p.Publish(t.Context(), []publish.Outgoing{event("a", 1)})[0]
	require.True(t, outbox.IsUnavailable(err), "%v", err)
	require.False(t, outbox.IsBrokerUnavailable(err), "%v", err)
}

// admin returns a client that administers the cluster.
func (c *cluster) admin(t testing.TB) *kadm.Client {
	t.Helper()
	admin, err := kadm.NewOptClient(kgo.SeedBrokers(c.addrs...), kgo.DisableClientMetrics())
	require.NoError(t, err)
	t.Cleanup(admin.Close)
	return admin
}

// TestStopChargesOnlyWhatWasSent: when a process stops, the rounds behind the one in flight are handed back, and so are
// events of which nothing was sent.
func TestStopChargesOnlyWhatWasSent(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	p := c.publisher(t, func(cfg *kafka.Config) { cfg.BatchBytes, cfg.Timeout = 2<<10, time.Hour })
	require.Equal(t, []error{nil}, p.Publish(t.Context(), []publish.Outgoing{event("a", 0)}))
	events := make([]publish.Outgoing, 100)
	for n := range events {
		events[n] = event("", n)
	}
	sent := make(chan int, 1)
	c.ControlKey(int16(kmsg.Produce), func(r kmsg.Request) (kmsg.Response, error, bool) {
		n := 0
		for _, b := range batchesOf(t, r.(*kmsg.ProduceRequest)) {
			n += int(b.NumRecords)
		}
		sent <- n
		return nil, nil, true // no reply
	})
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan []error, 1)
	go func() { result <- p.Publish(ctx, events) }()
	first := <-sent
	cancel()
	charged := 0
	for _, err := range <-result {
		require.ErrorIs(t, err, context.Canceled)
		if !errors.Is(err, outbox.ErrNotSent) {
			charged++
		}
	}
	require.Equal(t, first, charged)
	require.Less(t, charged, len(events))

	port, err := freeport.Find()
	require.NoError(t, err)
	gone := fmt.Sprintf("127.0.0.1:%d", port)
	away, err := kafka.New(kafka.Config{Brokers: []string{gone}, Timeout: time.Hour, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	defer away.Close()
	ctx, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	for _, err := range away.Publish(ctx, []publish.Outgoing{event("", 0), event("b", 1)}) {
		require.ErrorIs(t, err, outbox.ErrNotSent)
	}
}

// A producer that was refused its id is of no use any more. When the right is granted, a later call gets a new one.
func TestRightIsGranted(t *testing.T) {
	t.Parallel()
	for _, code := range []*kerr.Error{kerr.ClusterAuthorizationFailed, kerr.TransactionalIDAuthorizationFailed} {
		for _, lane := range []string{"", "relay"} {
			t.Run(code.Message+" "+lane, func(t *testing.T) {
				t.Parallel()
				c := newCluster(t)
				p := c.publisher(t, func(cfg *kafka.Config) { cfg.TransactionalID = lane })
				ctx := publish.ContextWithLane(t.Context(), publish.Lane{Name: "orders/0", Held: func(context.Context) error { return nil }})
				h := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.InitProducerID}, Err: code, Count: -1})
				err := p.Publish(ctx, []publish.Outgoing{event("a", 0)})[0]
				require.ErrorIs(t, err, code)
				require.True(t, outbox.IsUnavailable(err), "%v", err)
				h.Remove()
				if p.Publish(ctx, []publish.Outgoing{event("a", 0)})[0] != nil { // the key was bound to the producer
					require.NoError(t, p.Publish(ctx, []publish.Outgoing{event("a", 0)})[0])
				}
			})
		}
	}
}

// TestUnknownTopicAroundAnOutage: a topic that is unknown before and after an outage does not count as unknown in between.
func TestUnknownTopicAroundAnOutage(t *testing.T) {
	t.Parallel()
	for _, between := range []*kerr.Error{kerr.UnknownServerError, kerr.TopicAuthorizationFailed} {
		t.Run(between.Message, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			p := c.publisher(t, func(cfg *kafka.Config) { cfg.Timeout, cfg.UnknownTopicTimeout = time.Minute, time.Nanosecond })
			answered := func(code *kerr.Error) error {
				h := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: code, Count: -1})
				defer h.Remove()
				err := p.Publish(t.Context(), []publish.Outgoing{event("a", 0)})[0]
				require.ErrorIs(t, err, code)
				return err
			}
			require.True(t, outbox.IsUnavailable(answered(kerr.UnknownTopicOrPartition)))
			require.Error(t, answered(between))
			require.True(t, outbox.IsUnavailable(answered(kerr.UnknownTopicOrPartition)))
			require.True(t, outbox.IsPermanent(answered(kerr.UnknownTopicOrPartition)), "there was no other outcome since")
		})
	}
	t.Run("nobody answers", func(t *testing.T) {
		t.Parallel()
		c := newCluster(t)
		p := c.publisher(t, func(cfg *kafka.Config) { cfg.Timeout, cfg.UnknownTopicTimeout = 20*time.Second, time.Nanosecond })
		o := event("a", 0)
		o.Destination = "late"
		publish := func() error { return p.Publish(t.Context(), []publish.Outgoing{o})[0] }
		require.ErrorIs(t, publish(), kerr.UnknownTopicOrPartition)
		c.Close()
		err := publish()
		require.NotErrorIs(t, err, kerr.UnknownTopicOrPartition)
		require.True(t, outbox.IsUnavailable(err), "%v", err)
		c.start()
		require.Eventually(t, func() bool {
			err = publish()
			return errors.Is(err, kerr.UnknownTopicOrPartition)
		}, time.Minute, time.Millisecond)
		require.True(t, outbox.IsUnavailable(err), "%v", err)
	})
}

// TestTopicsDoNotWaitForEachOther: calls for a topic that does not answer do not delay calls for another topic, and do not
// count in its Concurrency.
func TestTopicsDoNotWaitForEachOther(t *testing.T) {
	t.Parallel()
	c := newCluster(t, kfake.SeedTopics(1, "stuck"))
	p := c.publisher(t, func(cfg *kafka.Config) { cfg.Timeout, cfg.Concurrency = time.Hour, 1 })
	hung := make(chan struct{}, 10)
	c.ControlKey(int16(kmsg.Produce), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		for _, b := range batchesOf(t, r.(*kmsg.ProduceRequest)) {
			if strings.Contains(string(b.Records), "stuck/") {
				hung <- struct{}{}
				return nil, nil, true // no reply
			}
		}
		return nil, nil, false
	})
	stuck := make([]publish.Outgoing, 3)
	ctx, cancel := context.WithCancel(t.Context())
	var calls sync.WaitGroup
	for n := range stuck {
		o := event(fmt.Sprintf("stuck/%d", n), n)
		o.Destination = "stuck"
		calls.Go(func() { p.Publish(ctx, []publish.Outgoing{o}) })
	}
	<-hung
	for n := range 100 {
		require.Equal(t, []error{nil}, p.Publish(t.Context(), []publish.Outgoing{event("a", n)}))
	}
	cancel()
	calls.Wait()
}
