package events

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/outbox"
)

// TestNobodyHandlesYet: stubs and opted-out methods return an error, so that no event is lost.
func TestNobodyHandlesYet(t *testing.T) {
	t.Parallel()
	var created outbox.Delivery[MessageCreated]
	for _, h := range []BroadcastHandlers{&BroadcastHandler{}, UnimplementedBroadcastHandlers{}} {
		require.ErrorIs(t, h.HandleMessageCreated(t.Context(), created), outbox.ErrUnimplemented)
	}
	for _, h := range []CompanionHandlers{&CompanionHandler{}, UnimplementedCompanionHandlers{}} {
		require.ErrorIs(t, h.HandleMessageCreated(t.Context(), nil, created), outbox.ErrUnimplemented)
		require.ErrorIs(t, h.HandleThreadClosed(t.Context(), nil, outbox.Delivery[ThreadClosed]{}), outbox.ErrUnimplemented)
	}
	require.True(t, MessageCreatedTopic.Untyped().Spec().Log)
	require.True(t, ThreadClosedTopic.Untyped().Spec().Silent)
}
