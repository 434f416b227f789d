package cause_test

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/call/cause"
)

func TestTheInnermostCauseCounts(t *testing.T) {
	t.Parallel()
	require.Zero(t, cause.Of(t.Context()))
	first, second := uuid.New(), uuid.New()
	ctx := cause.With(t.Context(), first, nil)
	derived, cancel := context.WithCancel(ctx)
	defer cancel()
	require.Equal(t, cause.Cause{ID: first}, cause.Of(derived))
	headers := map[string]string{cause.Correlation: "c"}
	require.Equal(t, cause.Cause{ID: second, Headers: headers}, cause.Of(cause.With(derived, second, headers)))
	require.Zero(t, cause.Of(cause.With(ctx, uuid.Nil, nil)))
}
