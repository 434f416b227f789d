package publishtest_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/publishtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memoryBus is a fakeBus that also ends the calls of publishers that ignore their context, when the test ends.
type memoryBus struct {
	fakeBus
	test context.Context
}

func (b *memoryBus) Send(ctx context.Context, subject string, headers map[string]string, body []byte) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(b.test, cancel)()
	return b.fakeBus.Send(ctx, subject, headers, body)
}

// target returns a memoryBus and a publisher for it, which create makes.
func target(t testing.TB, create func(*memoryBus) publish.Publisher) publishtest.Target {
	bus := &memoryBus{test: t.Context()}
	return publishtest.Target{
		Publisher:   create(bus),
		Destination: "users.renamed",
		Received:    bus.Received,
		Set:         bus.Set,
		Refuse:      func(o *publish.Outgoing) { o.Payload = []byte(`"` + strings.Repeat("x", maxBody) + `"`) },
	}
}

func newPublisher(bus Bus, encoder publish.Encoder) *BusPublisher {
	return &BusPublisher{Bus: bus, Encoder: encoder, Timeout: 10 * time.Second}
}

// TestPageShowsThisPublisher: the code in docs/run/publishers.md is custom_test.go and has at most 60 lines.
func TestPageShowsThisPublisher(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("custom_test.go")
	require.NoError(t, err)
	code := strings.Replace(string(source), "package publishtest_test", "package bus", 1)
	require.LessOrEqual(t, strings.Count(code, "\n"), 60)
	page, err := os.ReadFile("../../docs/run/publishers.md")
	require.NoError(t, err)
	require.Contains(t, string(page), "```go\n"+code+"```\n")
}
