package main

import (
	"bytes"
	"context"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/outboxgen/outboxgen/examples/users/cards"
	"github.com/outboxgen/outboxgen/outboxtest"
)

func TestRun(t *testing.T) {
	t.Parallel()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, cards.Topic))
	require.NoError(t, err)
	defer cluster.Close()
	pool := outboxtest.Postgres(t)
	url := pool.Config().ConnString()
	brokers := cluster.ListenAddrs()[0]

	var out bytes.Buffer
	require.NoError(t, run(t.Context(), url, brokers, true, true, &out))
	require.Equal(t, "0 messages consumed, 0 left\n", out.String())

	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, url, brokers, false, false, io.Discard) }()
	_, err = cluster.WaitGroupStable(t.Context(), "cards.2", 1)
	require.NoError(t, err)
	stop()
	require.NoError(t, <-ended)

	require.ErrorContains(t, run(t.Context(), url, "", false, false, io.Discard), "KAFKA_BROKERS")
	require.ErrorContains(t, run(t.Context(), url, "127.0.0.1:1", false, false, io.Discard), "reach Kafka at [127.0.0.1:1]")
}
