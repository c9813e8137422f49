import 'reflect-metadata';

import { Module } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { ScheduleModule } from '@nestjs/schedule';

import { ChangeStreamProducerService } from './change-stream.producer.service.js';
import { clients } from './clients.js';
import { LeaderElectionService } from './leader-election.service.js';
import { ReadModelConsumerService } from './read-model.consumer.service.js';

@Module({
  imports: [ScheduleModule.forRoot()],
  providers: [...clients, LeaderElectionService, ChangeStreamProducerService, ReadModelConsumerService],
})
class AppModule {}

const application = await NestFactory.createApplicationContext(AppModule, { logger: ['log', 'warn', 'error'] });
application.enableShutdownHooks();
