// Package ordersavro has the Avro records of the orders. Producer and consumers share the schema.
package ordersavro

import (
	_ "embed"
	"time"

	"github.com/hamba/avro/v2"
)

// ContentType is that of the records of this package.
const ContentType = "application/avro"

//go:embed order_shipped.avsc
var schema string

var orderShipped = avro.MustParse(schema)

// OrderShipped is the payload of orders/order_shipped.
type OrderShipped struct {
	OrderID   string    `avro:"order_id"`
	Parcel    int32     `avro:"parcel"`
	Carrier   string    `avro:"carrier"`
	Tracking  *string   `avro:"tracking"`
	ShippedAt time.Time `avro:"shipped_at"`
}

// Marshal returns the record of s.
func (s OrderShipped) Marshal() ([]byte, error) { return avro.Marshal(orderShipped, s) }

// Unmarshal reads a record.
func Unmarshal(body []byte) (s OrderShipped, err error) {
	err = avro.Unmarshal(orderShipped, body, &s)
	return s, err
}
