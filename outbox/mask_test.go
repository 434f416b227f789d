package outbox_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/outbox"
)

func TestMaskPayload(t *testing.T) {
	t.Parallel()
	type paid struct {
		Number int    `json:"number"`
		Token  string `json:"token" outbox:"sensitive"`
	}
	type sent struct {
		Token string `json:"token"`
	}
	topics := []*outbox.UntypedTopic{
		outbox.Topic[paid]{}.Untyped(), // the zero Topic
		outbox.NewTopic[paid](outbox.TopicSpec{Namespace: "shop", Name: "paid", RenamedFrom: []string{"settled"}}).Untyped(),
		outbox.NewTopic[sent](outbox.TopicSpec{Namespace: "mail", Name: "sent"}).Untyped(),
	}
	raw := json.RawMessage(`{"number": 7, "token": "s3cret", "iban": "DE00"}`)
	for topic, want := range map[string]string{
		"shop/paid":    `{"number":7,"token":"[masked]","iban":"[masked]"}`,
		"shop/settled": `{"number":7,"token":"[masked]","iban":"[masked]"}`,
		"mail/sent":    `{"number":"[masked]","token":"s3cret","iban":"[masked]"}`,
	} {
		got, ok := outbox.MaskPayload(topic, raw, topics...)
		require.True(t, ok, topic)
		require.Equal(t, want, string(got))
	}
	for _, topic := range []string{"shop/sent", "mail/paid", "mail/settled", "paid", "", "/", "shop/", "shop/paid/x"} {
		got, ok := outbox.MaskPayload(topic, raw, topics...)
		require.False(t, ok, topic)
		require.Nil(t, got)
	}
	_, ok := outbox.MaskPayload("shop/paid", json.RawMessage(`{`), topics...)
	require.False(t, ok)
}
