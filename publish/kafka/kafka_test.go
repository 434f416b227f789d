package kafka_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/plain"

	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/kafka"
)

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	for want, cfg := range map[string]kafka.Config{
		"field Brokers is empty":                               {},
		"field Brokers has an empty address":                   {Brokers: []string{"kafka:9092", ""}},
		"field Brokers has a URL: use host or host:port":       {Brokers: []string{"kafka://kafka:9092"}},
		"field Brokers has a user: use host or host:port":      {Brokers: []string{"me:hunter2@kafka:9092"}},
		"DefaultProduceTopicAlways sends all events to one":    {Brokers: []string{"kafka:9092"}, Options: []kgo.Opt{kgo.DefaultProduceTopic("x"), kgo.DefaultProduceTopicAlways()}},
		"field Timeout -1s is negative":                        {Brokers: []string{"kafka:9092"}, Timeout: -time.Second},
		"field BatchBytes 12 is not between 1024 and 33554432": {Brokers: []string{"kafka:9092"}, BatchBytes: 12},
		"field Concurrency -1 is not between 1 and 1000":       {Brokers: []string{"kafka:9092"}, Concurrency: -1},
		"unable to parse port":                                 {Brokers: []string{"kafka:port"}},
		"DisableIdempotentWrite breaks the order":              {Brokers: []string{"kafka:9092"}, Options: []kgo.Opt{kgo.DisableIdempotentWrite()}},
		"cannot allow idempotent produce cancellation and":     {Brokers: []string{"kafka:9092"}, Options: []kgo.Opt{kgo.TransactionalID("x")}},
	} {
		_, err := kafka.New(cfg)
		require.ErrorContains(t, err, "configure Kafka publisher: ")
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "hunter2")
	}
}

// TestNoSecretIsTold: no verb and no log shows credentials.
func TestNoSecretIsTold(t *testing.T) {
	t.Parallel()
	cfg := kafka.Config{Brokers: []string{"kafka:9092"}, Options: []kgo.Opt{
		kgo.SASL(plain.Auth{User: "me", Pass: "hunter2"}.AsMechanism()),
		kgo.DialTLSConfig(&tls.Config{ServerName: "hunter2"}),
	}}
	p, err := kafka.New(cfg)
	require.NoError(t, err)
	defer p.Close()
	var told bytes.Buffer
	for _, handler := range []slog.Handler{slog.NewTextHandler(&told, nil), slog.NewJSONHandler(&told, nil)} {
		slog.New(handler).Info("configured", "publisher", p, "config", cfg)
	}
	for _, v := range []any{p, cfg, &cfg} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
			fmt.Fprintf(&told, verb, v)
		}
	}
	require.Contains(t, told.String(), "kafka.Publisher(kafka:9092)")
	require.NotContains(t, told.String(), "hunter2")
	require.NotContains(t, told.String(), hex.EncodeToString([]byte("hunter2")))
}

// TestOptionsKeepThePromises: options that would split a key or a round have no effect.
func TestOptionsKeepThePromises(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	for name, option := range map[string]kgo.Opt{
		"round robin":      kgo.RecordPartitioner(kgo.RoundRobinPartitioner()),
		"sticky":           kgo.RecordPartitioner(kgo.StickyPartitioner()),
		"small buffer":     kgo.MaxBufferedBytes(500),
		"few records":      kgo.MaxBufferedRecords(3),
		"small batches":    kgo.ProducerBatchMaxBytes(1024),
		"delivery timeout": kgo.RecordDeliveryTimeout(time.Second),
		"lingering":        kgo.ProducerLinger(time.Hour),
		"no retries":       kgo.RecordRetries(0),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := c.publisher(t, func(cfg *kafka.Config) { cfg.Options, cfg.Timeout = []kgo.Opt{option}, time.Minute })
			var events []publish.Outgoing
			for n := range 200 {
				events = append(events, event(name, n))
			}
			require.Equal(t, make([]error, len(events)), p.Publish(t.Context(), events))
			var got []string
			for _, r := range c.received(topic) {
				if string(r.Key) == name {
					got = append(got, idOf(r))
				}
			}
			require.Len(t, got, len(events))
			for n, o := range events {
				require.Equal(t, o.ID.String(), got[n])
			}
		})
	}
}

func TestBinaryRecord(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	o := event("user/17", 1)
	o.TenantID = uuid.NullUUID{UUID: uuid.MustParse("7f000001-89ab-4cde-8f01-23456789abcd"), Valid: true}
	o.Entity = outbox.Entity{Type: "user", ID: "17", Version: 3}
	o.Headers = map[string]string{"traceparent": "00-a-b-01", "x-reason": "maßvoll", "ce_id": "forged", "content-type": "text/plain",
		"ce_traceparent": "forged", "CE_tracestate": "forged", "ce_dedupekey": "forged", "Ce_anything": "forged", "Content-Type": "text/plain"}
	require.Equal(t, []error{nil}, c.publisher(t).Publish(t.Context(), []publish.Outgoing{o}))

	got := c.received(topic)
	require.Len(t, got, 1)
	require.Equal(t, "user/17", string(got[0].Key))
	require.JSONEq(t, `{"n":1}`, string(got[0].Value))
	var headers []string
	for _, h := range got[0].Headers {
		headers = append(headers, h.Key+": "+string(h.Value))
	}
	require.Equal(t, []string{
		"content-type: application/json",
		"ce_dataversion: 1",
		"ce_entityid: 17",
		"ce_entitytype: user",
		"ce_entityversion: 3",
		"ce_id: " + o.ID.String(),
		"ce_partitionkey: user/17",
		"ce_source: /users",
		"ce_specversion: 1.0",
		"ce_subject: 17",
		"ce_tenantid: 7f000001-89ab-4cde-8f01-23456789abcd",
		"ce_time: 2026-11-21T13:14:15Z",
		"ce_traceparent: 00-a-b-01",
		"ce_type: users.user_renamed",
		"x-reason: maßvoll",
	}, headers)
}

func TestStructuredRecord(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	p := c.publisher(t, func(cfg *kafka.Config) { cfg.Encoder = publish.CloudEvents("/people", publish.Structured) })
	o := event("", 1)
	require.Equal(t, []error{nil}, p.Publish(t.Context(), []publish.Outgoing{o}))

	got := c.received(topic)
	require.Len(t, got, 1)
	require.Nil(t, got[0].Key, "an empty key would put all records into one partition")
	require.Equal(t, []kgo.RecordHeader{{Key: "content-type", Value: []byte("application/cloudevents+json")}}, got[0].Headers)
	require.Contains(t, string(got[0].Value), o.ID.String())
	require.Contains(t, string(got[0].Value), `"data":{"n":1}`)
}

// TestProducerSettings: with any options, the producer is idempotent and all replicas acknowledge.
func TestProducerSettings(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	seen := make(chan *kmsg.ProduceRequest, 10)
	c.ControlKey(int16(kmsg.Produce), func(r kmsg.Request) (kmsg.Response, error, bool) {
		seen <- r.(*kmsg.ProduceRequest)
		return nil, nil, false
	})
	p := c.publisher(t, func(cfg *kafka.Config) {
		cfg.Options = []kgo.Opt{kgo.RequiredAcks(kgo.NoAck()), kgo.ProducerBatchCompression(kgo.GzipCompression())}
	})
	require.Equal(t, []error{nil}, p.Publish(t.Context(), []publish.Outgoing{event("a", 1)}))
	request := <-seen
	require.EqualValues(t, -1, request.Acks)
	batch := batchesOf(t, request)[0]
	require.GreaterOrEqual(t, batch.ProducerID, int64(0), "idempotent")
	require.EqualValues(t, 1, batch.Attributes&7, "gzip, as in the options")
}

func TestClosedPublisher(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	p := c.publisher(t)
	hung := make(chan struct{})
	c.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		close(hung)
		return nil, nil, true // no reply
	})
	result := make(chan []error, 1)
	go func() { result <- p.Publish(context.Background(), []publish.Outgoing{event("a", 1), event("a", 2)}) }()
	<-hung
	p.Close()
	for _, errs := range [][]error{<-result, p.Publish(t.Context(), []publish.Outgoing{event("a", 1), event("a", 2)})} {
		require.ErrorIs(t, errs[0], kafka.ErrClosed)
		require.True(t, outbox.IsUnavailable(errs[0]))
		require.Equal(t, outbox.ErrBehind, errs[1])
	}
	p.Close()
}

// TestCallsWaitForTheirTurn: not more than Concurrency calls run, and a waiting call ends with its context.
func TestCallsWaitForTheirTurn(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	p := c.publisher(t, func(cfg *kafka.Config) { cfg.Concurrency = 1; cfg.Timeout = 20 * time.Second })
	hung, waken := make(chan struct{}), make(chan struct{})
	c.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		c.DropControl()
		close(hung)
		c.SleepControl(func() { <-waken })
		return nil, nil, false
	})
	result := make(chan []error, 1)
	go func() { result <- p.Publish(context.Background(), []publish.Outgoing{event("a", 1)}) }()
	<-hung
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	errs := p.Publish(ctx, []publish.Outgoing{event("b", 1), event("b", 2)})
	require.ErrorIs(t, errs[0], context.DeadlineExceeded)
	require.False(t, outbox.IsUnavailable(errs[0]))
	require.Equal(t, outbox.ErrBehind, errs[1])
	close(waken)
	require.Equal(t, []error{nil}, <-result)
}

// TestEncoderDecides: the encoder says what its errors mean, and the events behind are not sent.
func TestEncoderDecides(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	events := []publish.Outgoing{event("a", 0), event("a", 1), event("a", 2), event("b", 3), event("c", 4)}
	odd, bad := errors.New("registry does not answer"), errors.New("no schema")
	p := c.publisher(t, func(cfg *kafka.Config) {
		cfg.Encoder = func(o publish.Outgoing) (publish.Message, error) {
			switch o.ID {
			case events[1].ID:
				return publish.Message{}, outbox.Unavailable(odd)
			case events[3].ID:
				return publish.Message{}, bad
			}
			return publish.CloudEvents("", publish.Binary)(o)
		}
	})
	errs := p.Publish(t.Context(), events)
	require.NoError(t, errs[0])
	require.ErrorIs(t, errs[1], odd)
	require.True(t, outbox.IsUnavailable(errs[1]))
	require.Equal(t, outbox.ErrBehind, errs[2])
	require.Equal(t, bad, errs[3])
	require.NoError(t, errs[4])
	require.Len(t, c.received(topic), 2)
}

// TestKeysSpread: the partition of a key is that of Kafka's own clients (murmur2), so that other producers agree.
func TestKeysSpread(t *testing.T) {
	t.Parallel()
	c := newCluster(t, kfake.SeedTopics(6, "other"))
	p := c.publisher(t)
	var events []publish.Outgoing
	for i, key := range []string{"user/1", "user/2", "user/3", "user/4", "user/5", "user/6", "user/7", "user/8"} {
		events = append(events, event(key, i))
	}
	require.NotContains(t, slices.Collect(failures(p.Publish(t.Context(), events))), true)
	java := kgo.StickyKeyPartitioner(nil).ForTopic(topic)
	for _, r := range c.received(topic) {
		require.EqualValues(t, java.Partition(r, 6), r.Partition)
	}
}

func failures(errs []error) func(func(bool) bool) {
	return func(yield func(bool) bool) {
		for _, err := range errs {
			if !yield(err != nil) {
				return
			}
		}
	}
}

// batchesOf returns the record batches of a request.
func batchesOf(t testing.TB, request *kmsg.ProduceRequest) []kmsg.RecordBatch {
	t.Helper()
	var batches []kmsg.RecordBatch
	for _, rt := range request.Topics {
		for _, rp := range rt.Partitions {
			if rp.Records == nil {
				continue // the client gave the batch up while it wrote the request
			}
			var b kmsg.RecordBatch
			if err := b.ReadFrom(rp.Records); err != nil {
				t.Error(err) // not FailNow: the cluster would wait for the end of this call for ever
				continue
			}
			batches = append(batches, b)
		}
	}
	return batches
}
