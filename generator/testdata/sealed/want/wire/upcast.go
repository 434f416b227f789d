package wire

import "github.com/google/uuid"

func upcastPlacedV1(old PlacedV1) (Placed, error) {
	return Placed{
		ShopID: old.ShopID, OrderID: old.OrderID, Card: old.Card, Paid: 1, Contact: old.Contact, Others: []Contact{},
		ByName: map[string]Contact{},
	}, nil
}

func upcastToldV1(old ToldV1) (Told, error) {
	return Told{ShopID: uuid.NameSpaceDNS, Text: old.Text}, nil
}
