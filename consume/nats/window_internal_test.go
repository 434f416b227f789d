package nats

import (
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

type delivery struct {
	jetstream.Msg
	name string
}

// deliver adds the message at a place of the stream, as the n-th delivery.
func deliver(w *window, n, stream uint64, name string) *delivery {
	d := &delivery{name: name}
	w.add(d, &jetstream.MsgMetadata{Sequence: jetstream.SequencePair{Consumer: n, Stream: stream}, NumDelivered: 1})
	return d
}

func streams(hs []*held) (places []uint64) {
	for _, h := range hs {
		places = append(places, h.stream)
	}
	return places
}

// TestWindow: messages are handed out in the order of the stream, and none while a delivery may be missing.
func TestWindow(t *testing.T) {
	t.Parallel()
	w := newWindow(true)
	deliver(w, 5, 12, "")
	deliver(w, 6, 11, "")
	require.Empty(t, w.take(10), "a new window does not know what was delivered before")
	require.False(t, w.sure(1), "another message has arrived since the question")
	require.Empty(t, w.take(10))
	require.True(t, w.sure(2))
	require.Equal(t, []uint64{11, 12}, streams(w.take(10)))
	deliver(w, 7, 13, "")
	require.Equal(t, []uint64{13}, streams(w.take(10)))
	deliver(w, 9, 15, "") // the eighth is missing
	require.Empty(t, w.take(10))
	deliver(w, 10, 14, "")
	require.True(t, w.sure(5))
	require.Equal(t, []uint64{14}, streams(w.take(1)))
	deliver(w, 4, 16, "") // a server that has lost what it knew of the last deliveries begins again
	require.Empty(t, w.take(10))
	unsure, _, _, holds := w.doubts()
	require.True(t, unsure)
	require.Equal(t, 6, holds)

	w = newWindow(true)
	require.True(t, w.sure(0))
	deliver(w, 12, 2, "") // the first one that this window would have got is missing
	require.Empty(t, w.take(10))

	w = newWindow(false)
	deliver(w, 1, 1, "")
	deliver(w, 3, 3, "")
	require.Equal(t, []uint64{1, 3}, streams(w.take(10)), "without an order nothing is waited for")
}

// TestWindowCountsLostDeliveries: the window waits for as many messages as it has missed deliveries. A message that is delivered for
// the first time, or that it holds, is not one of these.
func TestWindowCountsLostDeliveries(t *testing.T) {
	t.Parallel()
	w := newWindow(true)
	lost := func() bool {
		_, _, lost, _ := w.doubts()
		return lost
	}
	again := func(n, stream uint64) {
		w.add(&delivery{}, &jetstream.MsgMetadata{Sequence: jetstream.SequencePair{Consumer: n, Stream: stream}, NumDelivered: 2})
	}
	deliver(w, 5, 5, "")
	require.False(t, lost(), "those before belong to other processes")
	deliver(w, 8, 8, "")
	require.True(t, lost())
	deliver(w, 9, 9, "")
	again(10, 5)
	again(11, 6)
	require.True(t, lost())
	again(12, 7)
	require.False(t, lost())
	deliver(w, 14, 11, "")
	require.True(t, lost())
	require.True(t, w.sure(6))
	require.False(t, lost())
}

// TestWindowAnswersTheLastDelivery: a message that is delivered again is applied once, and its last delivery is acknowledged.
// It is forgotten when the server has got that, unless it was delivered once more.
func TestWindowAnswersTheLastDelivery(t *testing.T) {
	t.Parallel()
	w := newWindow(true)
	deliver(w, 1, 1, "first")
	second := deliver(w, 2, 1, "second")
	require.True(t, w.sure(1))
	batch := w.take(10)
	require.Len(t, batch, 1)
	require.Empty(t, w.pick(true))
	require.Equal(t, []jetstream.Msg{second}, w.pick(false))
	acked := w.settled(batch)
	require.Equal(t, []jetstream.Msg{second}, acked)
	third := deliver(w, 3, 1, "third")
	require.Empty(t, w.take(10), "it is settled")
	w.forget(acked)
	require.Equal(t, []jetstream.Msg{third}, w.pick(true))
	w.forget([]jetstream.Msg{third})
	_, _, _, holds := w.doubts()
	require.Zero(t, holds)
	deliver(w, 4, 2, "")
	w.forget(w.pick(false))
	_, _, _, holds = w.doubts()
	require.Equal(t, 1, holds, "it is not settled")
}
