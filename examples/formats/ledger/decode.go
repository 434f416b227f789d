// Package ledger is another service. It consumes the events of the shop, and knows nothing of the shop's code: it shares the
// generated consumer package and the schemas.
package ledger

import (
	"encoding/json"
	"fmt"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/examples/formats/events/orderevents"
	"github.com/outboxgen/outboxgen/examples/formats/orderpb"
	"github.com/outboxgen/outboxgen/examples/formats/ordersavro"
)

// decodeProtobuf is the consume.Decoder of application/protobuf. An error makes the message permanently unreadable.
func decodeProtobuf(_ consume.Event, body []byte) (json.RawMessage, error) {
	var m orderpb.OrderPlaced
	if err := proto.Unmarshal(body, &m); err != nil {
		return nil, err
	}
	id, err := uuid.Parse(m.OrderId)
	if err != nil {
		return nil, err
	}
	// Protobuf has no required fields: what must be there is checked here.
	if err := m.PlacedAt.CheckValid(); err != nil {
		return nil, fmt.Errorf("placed_at: %w", err)
	}
	p := orderevents.OrderPlaced{
		OrderID: id, Customer: m.Customer, TotalCents: m.TotalCents, Lines: []orderevents.Line{}, PlacedAt: m.PlacedAt.AsTime(),
	}
	for _, l := range m.Lines {
		p.Lines = append(p.Lines, orderevents.Line{Article: l.Article, Quantity: l.Quantity})
	}
	return json.Marshal(p)
}

// decodeAvro is the consume.Decoder of application/avro.
func decodeAvro(_ consume.Event, body []byte) (json.RawMessage, error) {
	s, err := ordersavro.Unmarshal(body)
	if err != nil {
		return nil, err
	}
	id, err := uuid.Parse(s.OrderID)
	if err != nil {
		return nil, err
	}
	return json.Marshal(orderevents.OrderShipped{
		OrderID: id, Parcel: s.Parcel, Carrier: s.Carrier, Tracking: s.Tracking, ShippedAt: s.ShippedAt,
	})
}
