// Package shop is the producer: it places orders, and publishes their events as Protobuf and Avro.
package shop

import (
	"encoding/json"
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/outboxgen/outboxgen/examples/formats/events"
	"github.com/outboxgen/outboxgen/examples/formats/orderpb"
	"github.com/outboxgen/outboxgen/examples/formats/ordersavro"
	"github.com/outboxgen/outboxgen/publish"
)

var cloudEvents = publish.CloudEvents("/shop", publish.Binary)

// Encode is the publish.Encoder of the shop. The row of an event has JSON; only the message has another format. The facts of the
// event are attributes of a CloudEvent, as ever.
//
// An error is a failed attempt. When several events in a row fail, because a schema lacks what their payloads have, the
// destination rests and no attempt is charged until the code is corrected.
func Encode(o publish.Outgoing) (publish.Message, error) {
	m, err := cloudEvents(o)
	if err != nil {
		return m, err
	}
	switch o.Topic {
	case "order_placed":
		m.ContentType = orderpb.ContentType
		m.Body, err = encodePlaced(o.Payload)
	case "order_shipped":
		m.ContentType = ordersavro.ContentType
		m.Body, err = encodeShipped(o.Payload)
	}
	if err != nil {
		return publish.Message{}, fmt.Errorf("encode %s: %w", o.Topic, err)
	}
	return m, nil
}

func encodePlaced(payload []byte) ([]byte, error) {
	var p events.OrderPlaced
	if err := json.Unmarshal(payload, &p); err != nil {
		return nil, err
	}
	m := &orderpb.OrderPlaced{
		OrderId: p.OrderID.String(), Customer: p.Customer, TotalCents: p.TotalCents, PlacedAt: timestamppb.New(p.PlacedAt),
	}
	for _, l := range p.Lines {
		m.Lines = append(m.Lines, &orderpb.Line{Article: l.Article, Quantity: l.Quantity})
	}
	return proto.Marshal(m)
}

func encodeShipped(payload []byte) ([]byte, error) {
	var p events.OrderShipped
	if err := json.Unmarshal(payload, &p); err != nil {
		return nil, err
	}
	return ordersavro.OrderShipped{
		OrderID: p.OrderID.String(), Parcel: p.Parcel, Carrier: p.Carrier, Tracking: p.Tracking, ShippedAt: p.ShippedAt,
	}.Marshal()
}
