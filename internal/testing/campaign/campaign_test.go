package campaign_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/campaign"
)

func TestOf(t *testing.T) {
	t.Setenv(campaign.Variable, "")
	require.Equal(t, 2, campaign.Of(2, 50))
	t.Setenv(campaign.Variable, "1")
	require.Equal(t, 50, campaign.Of(2, 50))
}
