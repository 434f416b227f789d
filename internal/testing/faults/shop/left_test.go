package shop

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestGoroutinesOfTheProduct: a goroutine is one of the product if it runs there, or was begun there, but not in this campaign.
func TestGoroutinesOfTheProduct(t *testing.T) {
	t.Parallel()
	inside := "goroutine 7 [select]:\nio.read()\n\tio.go:1\ngithub.com/outboxgen/outboxgen/queue.(*Dispatcher).Run(...)\n\tqueue.go:1"
	begun := "goroutine 8 [select]:\nio.read()\n\tio.go:1\ncreated by github.com/outboxgen/outboxgen/publish/nats.New in goroutine 1\n\tnats.go:1"
	library := "goroutine 9 [select]:\ngithub.com/twmb/franz-go/pkg/kgo.(*Client).loop()\n\tclient.go:1\ncreated by github.com/twmb/franz-go/pkg/kgo.NewClient"
	ours := "goroutine 10 [sleep]:\ngithub.com/outboxgen/outboxgen/internal/testing/faults/shop.(*Journal).watch()\n\tjournal.go:1"
	require.Equal(t, []string{inside, begun}, ofProduct([]string{inside, begun, library, ours}))
	begins, ends := make(chan struct{}), make(chan struct{})
	go func() { close(begins); <-ends }()
	<-begins
	require.Contains(t, strings.Join(stacks(), "\n"), "TestGoroutinesOfTheProduct.func1")
	close(ends)
}
