// SPDX-License-Identifier: GPL-2.0-only
#include "links.h"
#include "namespaces.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/if_arp.h>
#include <linux/net_namespace.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <netinet/in.h>
#include <string.h>
#include <unistd.h>

#define RECEIVE_BYTES (8 << 20)
#define EVERYTHING    (~0u) /* all flags change: rtnetlink's sign of a device that is new here */

/*
 * Both sockets are in a namespace of their own. The kernel numbers the watched namespaces there,
 * and forgets the numbers with it: nothing stays behind. A socket in each watched namespace would
 * keep a deleted one alive.
 */
static int events = -1, requests = -1;
static char buffer[1 << 16];
static struct nlmsghdr *next;
static unsigned int left;
static int from;

static int netlink(void)
{
	struct sockaddr_nl any = {.nl_family = AF_NETLINK};
	int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);

	if (fd >= 0 && bind(fd, (struct sockaddr *)&any, sizeof(any))) {
		close(fd);
		return -1;
	}
	return fd;
}

int links_open(void)
{
	static const int groups[] = {RTNLGRP_LINK, RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV6_IFADDR,
				     RTNLGRP_NSID};
	int one = 1, bytes = RECEIVE_BYTES;

	if (!namespace_make())
		return -1;
	events = netlink();
	requests = netlink();
	namespace_leave();
	if (events < 0 || requests < 0 ||
	    setsockopt(events, SOL_NETLINK, NETLINK_LISTEN_ALL_NSID, &one, sizeof(one)))
		return -1;
	setsockopt(events, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof(bytes));
	for (size_t i = 0; i < sizeof(groups) / sizeof(*groups); i++)
		if (setsockopt(events, SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, &groups[i],
			       sizeof(*groups)))
			return -1;
	return events;
}

struct nsid_request {
	struct nlmsghdr head;
	struct rtgenmsg family;
	char align[3];
	struct rtattr id_head;
	int id;
	struct rtattr fd_head;
	int fd;
};

/* Sends the request, and reads messages until the last one of the answer. */
static int ask(struct nsid_request *request)
{
	static char answer[4096];
	int id = -1;

	if (send(requests, request, sizeof(*request), 0) < 0)
		return -1;
	for (;;) {
		ssize_t n = recv(requests, answer, sizeof(answer), 0);
		struct nlmsghdr *head = (void *)answer;

		if (n < (ssize_t)sizeof(*head))
			return -1;
		if (head->nlmsg_type == NLMSG_ERROR) {
			errno = -((struct nlmsgerr *)NLMSG_DATA(head))->error;
			return errno && errno != EEXIST ? -1 : id;
		}
		if (head->nlmsg_type == RTM_NEWNSID) {
			struct rtattr *attr = (void *)((char *)NLMSG_DATA(head) +
						       NLMSG_ALIGN(sizeof(struct rtgenmsg)));

			if (attr->rta_type == NETNSA_NSID)
				id = *(int *)RTA_DATA(attr);
		}
	}
}

int links_watch(const char *netns)
{
	struct nsid_request request = {
		.head = {.nlmsg_len = sizeof(request),
			 .nlmsg_type = RTM_NEWNSID,
			 .nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK},
		.id_head = {.rta_len = RTA_LENGTH(sizeof(int)), .rta_type = NETNSA_NSID},
		.id = NETNSA_NSID_NOT_ASSIGNED, /* any */
		.fd_head = {.rta_len = RTA_LENGTH(sizeof(int)), .rta_type = NETNSA_FD},
	};
	int id;

	request.fd = open(netns, O_RDONLY | O_CLOEXEC);
	if (request.fd < 0)
		return -1;
	errno = 0;
	id = ask(&request);
	if (id < 0 && (!errno || errno == EEXIST)) {
		request.head.nlmsg_type = RTM_GETNSID;
		id = ask(&request);
	}
	close(request.fd);
	return id;
}

/* Receive messages; false: there are none. missed: the kernel dropped some. */
static bool receive(bool *missed)
{
	union {
		struct cmsghdr head;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec part = {.iov_base = buffer, .iov_len = sizeof(buffer)};
	struct msghdr message = {.msg_iov = &part,
				 .msg_iovlen = 1,
				 .msg_control = &control,
				 .msg_controllen = sizeof(control)};
	ssize_t n = recvmsg(events, &message, MSG_DONTWAIT);
	struct cmsghdr *each;

	*missed = n < 0 && errno == ENOBUFS;
	if (n < 0)
		return false;
	from = -1;
	for (each = CMSG_FIRSTHDR(&message); each; each = CMSG_NXTHDR(&message, each))
		if (each->cmsg_level == SOL_NETLINK && each->cmsg_type == NETLINK_LISTEN_ALL_NSID)
			from = *(int *)CMSG_DATA(each);
	next = (void *)buffer;
	left = n;
	return true;
}

static void copy_text(char *to, size_t size, const struct rtattr *attr)
{
	size_t n = RTA_PAYLOAD(attr);

	if (n >= size)
		n = size - 1;
	memcpy(to, RTA_DATA(attr), n);
	to[n] = 0;
}

static void copy_kind(struct link_change *to, struct rtattr *info)
{
	int bytes = RTA_PAYLOAD(info);

	for (struct rtattr *each = RTA_DATA(info); RTA_OK(each, bytes);
	     each = RTA_NEXT(each, bytes))
		if (each->rta_type == IFLA_INFO_KIND)
			copy_text(to->kind, sizeof(to->kind), each);
}

static bool of_link(struct nlmsghdr *message, struct link_change *to)
{
	struct ifinfomsg *link = NLMSG_DATA(message);
	int bytes = IFLA_PAYLOAD(message);

	if (message->nlmsg_len < NLMSG_LENGTH(sizeof(*link)) || link->ifi_family != AF_UNSPEC)
		return false; /* bridges report their ports in a family of their own */
	if (message->nlmsg_type == RTM_DELLINK)
		to->what = LINK_GONE;
	else if (link->ifi_change == EVERYTHING)
		to->what = LINK_NEW;
	else if (link->ifi_change & link->ifi_flags & IFF_UP)
		to->what = LINK_UP;
	else
		return false;
	to->ifindex = link->ifi_index;
	to->up = link->ifi_flags & IFF_UP;
	to->loopback = link->ifi_type == ARPHRD_LOOPBACK;
	to->ethernet = to->loopback || link->ifi_type == ARPHRD_ETHER;
	for (struct rtattr *each = IFLA_RTA(link); RTA_OK(each, bytes);
	     each = RTA_NEXT(each, bytes)) {
		if (each->rta_type == IFLA_IFNAME)
			copy_text(to->name, sizeof(to->name), each);
		else if (each->rta_type == IFLA_LINKINFO)
			copy_kind(to, each);
	}
	return true;
}

static bool of_address(struct nlmsghdr *message, struct link_change *to)
{
	struct ifaddrmsg *address = NLMSG_DATA(message);
	int bytes = IFA_PAYLOAD(message);
	bool found = false;

	if (message->nlmsg_len < NLMSG_LENGTH(sizeof(*address)))
		return false;
	to->what = message->nlmsg_type == RTM_NEWADDR ? ADDRESS_NEW : ADDRESS_GONE;
	to->address.ss_family = address->ifa_family;
	for (struct rtattr *each = IFA_RTA(address); RTA_OK(each, bytes);
	     each = RTA_NEXT(each, bytes)) {
		/* IFA_ADDRESS of IPv4 is the peer's on a point-to-point device. */
		if (address->ifa_family == AF_INET && each->rta_type == IFA_LOCAL &&
		    RTA_PAYLOAD(each) == 4) {
			memcpy(&((struct sockaddr_in *)&to->address)->sin_addr, RTA_DATA(each), 4);
			found = true;
		} else if (address->ifa_family == AF_INET6 &&
			   (each->rta_type == IFA_LOCAL ||
			    (each->rta_type == IFA_ADDRESS && !found)) &&
			   RTA_PAYLOAD(each) == 16) {
			memcpy(&((struct sockaddr_in6 *)&to->address)->sin6_addr, RTA_DATA(each),
			       16);
			found = true;
		}
	}
	return found;
}

static bool of_namespace(struct nlmsghdr *message, struct link_change *to)
{
	struct rtattr *attr =
		(void *)((char *)NLMSG_DATA(message) + NLMSG_ALIGN(sizeof(struct rtgenmsg)));

	if (message->nlmsg_len < NLMSG_SPACE(sizeof(struct rtgenmsg)) + RTA_LENGTH(sizeof(int)) ||
	    attr->rta_type != NETNSA_NSID)
		return false;
	to->what = NAMESPACE_GONE;
	to->watch = *(int *)RTA_DATA(attr);
	return true;
}

static bool understood(struct nlmsghdr *message, struct link_change *to)
{
	memset(to, 0, sizeof(*to));
	to->watch = from;
	switch (message->nlmsg_type) {
	case RTM_NEWLINK:
	case RTM_DELLINK:
		return from >= 0 && of_link(message, to);
	case RTM_NEWADDR:
	case RTM_DELADDR:
		return from >= 0 && of_address(message, to);
	case RTM_DELNSID: /* in the sockets' own namespace: of one that is watched */
		return from < 0 && of_namespace(message, to);
	}
	return false;
}

bool links_next(struct link_change *change)
{
	struct nlmsghdr *message;
	bool missed;

	for (;;) {
		while (next && NLMSG_OK(next, left)) {
			message = next;
			next = NLMSG_NEXT(next, left);
			if (understood(message, change))
				return true;
		}
		next = NULL;
		if (!receive(&missed)) {
			*change = (struct link_change){.what = MISSED};
			return missed;
		}
	}
}
