package events

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/payload"
)

// keysOf returns the texts of the keys of the limits of p, which are per template or per destination, in their order.
func keysOf[P any](t *testing.T, topic outbox.Topic[P], p P) []string {
	t.Helper()
	keyed := 0
	for _, l := range topic.Untyped().Spec().Limits {
		if l.Per != "" && l.Per != outbox.PerTenant {
			keyed++
		}
	}
	keys := topic.Untyped().Spec().Keys(&p).Limits
	require.Len(t, keys, keyed, "one for each limit that has a key of its own")
	texts := make([]string, len(keys))
	for i, key := range keys {
		require.NoError(t, key.Err())
		texts[i] = key.String()
	}
	return texts
}

func TestKeysOfLimits(t *testing.T) {
	t.Parallel()
	tenant, mailbox := uuid.New(), uuid.New()
	due := DigestDue{
		TenantID: tenant, MailboxID: mailbox, Plan: PlanPaid, Day: payload.Date{Year: 2026, Month: time.March, Day: 1},
	}
	require.Equal(t, []string{mailbox.String(), "paid/" + tenant.String() + "/v-2026-03-01"}, keysOf(t, DigestDueTopic, due))
	require.Equal(t, []string{"box/-7"}, keysOf(t, MailboxMovedTopic, MailboxMoved{MailboxID: -7}))
	require.Nil(t, MailboxCheckedTopic.Untyped().Spec().Keys, "a limit of the topic needs no key")
}

// TestKeyOfADestinationIsTheDestination: it is the text that the publisher gets, nothing escaped.
func TestKeyOfADestinationIsTheDestination(t *testing.T) {
	t.Parallel()
	sent := InvoiceSent{Customer: "a/b%20ü {c}", InvoiceID: uuid.New()}
	require.Equal(t, []string{"a/b%20ü {c}"}, keysOf(t, InvoiceSentTopic, sent))
	require.Equal(t, invoiceSentPublication.DestinationOf(&sent), keysOf(t, InvoiceSentTopic, sent)[0])
	routed := InvoiceRouted{Region: -5, InvoiceID: uuid.New(), Plan: PlanFree}
	require.Equal(t, []string{"free", "-5"}, keysOf(t, InvoiceRoutedTopic, routed))
	require.True(t, InvoiceSentTopic.Untyped().Spec().Keys(&InvoiceSent{}).Limits[0].IsZero(), "an empty destination is no key")
}
