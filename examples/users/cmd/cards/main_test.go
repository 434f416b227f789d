package main

import (
	"context"
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

	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, url, brokers, true) }()
	_, err = cluster.WaitGroupStable(t.Context(), "cards.2", 1)
	require.NoError(t, err)
	stop()
	require.NoError(t, <-ended)

	require.ErrorContains(t, run(t.Context(), url, "", false), "KAFKA_BROKERS")
}
