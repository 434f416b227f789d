package listener_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/publish"
)

// TestDestinationOfIsForQueueTopics: a log topic is published in order, to one destination.
func TestDestinationOfIsForQueueTopics(t *testing.T) {
	t.Parallel()
	_, err := listener.New(pgtest.Database(t), listener.Spec{Name: "relay"}, listener.Config{
		Publishers: map[string]publish.Publisher{"hook": runtimetest.NewBroker()},
	}, listener.Publish(runtimetest.SaidTopic, publish.Publication{Broker: "hook", DestinationOf: func(any) string { return "a" }}))
	require.ErrorContains(t, err, "topic test/said: its publication has DestinationOf, which is for queue topics: use Destination")
}
