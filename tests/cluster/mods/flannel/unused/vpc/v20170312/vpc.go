// Package v20170312 stands for a cloud's SDK, as package common does: no call of it succeeds.
package v20170312

import "errors"

var errLeftOut = errors.New("this flanneld is built without the cloud's SDK")

type (
	Client struct{}
	Filter struct {
		Name   *string
		Values []*string
	}
	Route struct {
		DestinationCidrBlock, GatewayType, GatewayId, RouteType *string

		Enabled *bool
		RouteId *uint64
	}
	RouteTable struct {
		RouteTableId *string
		RouteSet     []*Route
	}
	Request struct {
		Filters      []*Filter
		RouteTableId *string
		Routes       []*Route
	}
	Response struct {
		Response struct{ RouteTableSet []*RouteTable }
	}
)

func NewClientWithSecretId(id, key, region string) (*Client, error) { return nil, errLeftOut }

func NewDescribeRouteTablesRequest() *Request { return new(Request) }
func NewDeleteRoutesRequest() *Request        { return new(Request) }
func NewCreateRoutesRequest() *Request        { return new(Request) }

func (*Client) DescribeRouteTables(*Request) (*Response, error) { return nil, errLeftOut }
func (*Client) DeleteRoutes(*Request) (*Response, error)        { return nil, errLeftOut }
func (*Client) CreateRoutes(*Request) (*Response, error)        { return nil, errLeftOut }
